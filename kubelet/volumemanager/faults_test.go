package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/mounts"
)

// TestDevicesSurviveFaultsAndRestarts lets Pods with random volumes come and go while the driver fails, hangs, loses
// responses or is stopped, and the volume manager is restarted at random. In the end, when the driver works again, nothing
// may be left of Pods that are gone, and what Pods have written must be there.
//
// Checked on the way: what is set up can be written to, and no volume leaves volumesInUse while the driver has it
// staged.
func TestDevicesSurviveFaultsAndRestarts(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		seed := uint64(time.Now().UnixNano()) + uint64(round)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runFaultRound(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

const randomVolumes = 5

func runFaultRound(t *testing.T, random *rand.Rand) {
	f := newDriverFixture(t)
	var handles []string
	for i := range randomVolumes {
		name := fmt.Sprint("v", i)
		handles = append(handles, name)
		f.createDriverClaim(name, func(pv *corev1.PersistentVolume) {
			if i == randomVolumes-1 {
				pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			}
		})
	}
	f.attach(handles...)
	var lock sync.Mutex // guards random, which the driver uses too
	f.driver.Plan(func(string, string) csifake.Fault {
		lock.Lock()
		defer lock.Unlock()
		faults := []csifake.Fault{
			{Code: codes.Internal}, {Code: codes.Unavailable, TakesEffect: true}, {Code: codes.Unavailable},
			{Code: codes.DeadlineExceeded, TakesEffect: true}, {Code: codes.Aborted}, {Hang: true}, {Hang: true, TakesEffect: true},
		}
		if random.IntN(3) > 0 {
			return csifake.Fault{}
		}
		return faults[random.IntN(len(faults))]
	})
	f.status.checkWrites(func(inUse []corev1.UniqueVolumeName) {
		for _, handle := range f.driver.StagedVolumes() {
			if !slices.Contains(inUse, uniqueName(handle)) {
				t.Errorf("volume %s is staged but not in use", handle)
			}
		}
	})
	written := map[string]bool{}
	for life := range 4 {
		if life > 0 {
			f.restart()
			f.attach(handles...)
		}
		lock.Lock()
		pods := randomPods(random, life)
		lock.Unlock()
		runProcessLife(t, f, pods, written)
	}
	f.driver.Plan(nil)
	f.restart()
	f.attach(handles...)
	require.NoError(t, f.CleanupOrphans(t.Context(), func(types.UID) bool { return false }))
	f.requireUnstaged()
	left, err := mounts.ListBelow(filepath.Join(f.root, "pods"))
	require.NoError(t, err)
	require.Empty(t, left)
	for handle := range written {
		require.FileExists(t, filepath.Join(f.driver.Config.Dir, "data", handle, "written"))
	}
}

// randomPods are Pods that each use some of the volumes.
func randomPods(random *rand.Rand, life int) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range 6 {
		var volumes []corev1.Volume
		for v := range randomVolumes {
			if random.IntN(3) == 0 {
				volumes = append(volumes, claimVolume(fmt.Sprint("v", v), fmt.Sprint("v", v)))
			}
		}
		p := pod(types.UID(fmt.Sprintf("p%d-%d", life, i)), volumes...)
		container := &p.Spec.Containers[0]
		for j, mount := range container.VolumeMounts {
			if mount.Name == fmt.Sprint("v", randomVolumes-1) {
				container.VolumeMounts = append(container.VolumeMounts[:j], container.VolumeMounts[j+1:]...)
				container.VolumeDevices = []corev1.VolumeDevice{{Name: mount.Name, DevicePath: "/dev/x"}}
				break
			}
		}
		pods = append(pods, p)
	}
	return pods
}

// runProcessLife runs one process: it ends while some Pods are being mounted or unmounted.
func runProcessLife(t *testing.T, f *fixture, pods []*corev1.Pod, written map[string]bool) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() {
			// The context ends calls that hang, as the timeout of a call does.
			short, end := context.WithTimeout(ctx, time.Duration(40+20*i)*time.Millisecond)
			defer end()
			err := f.Mount(short, p)
			if err != nil && short.Err() == nil && !errors.Is(err, volumemanager.ErrTerminating) {
				t.Errorf("mount: %v", err)
			}
			for name, mounted := range f.Volumes(p.UID) {
				if mounted.Block {
					continue
				}
				if err := os.WriteFile(filepath.Join(mounted.Path, "written"), []byte(name), 0o600); err != nil {
					t.Errorf("write into a mounted volume: %v", err)
				}
				mu.Lock()
				written[name] = true
				mu.Unlock()
			}
			if i%3 > 0 {
				_ = f.Unmount(ctx, p.UID) // what does not finish in time is left for the end
			}
		})
	}
	stepping := make(chan struct{})
	var clock sync.WaitGroup
	clock.Go(func() {
		ticker := time.NewTicker(2 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stepping:
				return
			case <-ticker.C:
				f.clock.Step(500 * time.Millisecond)
			}
		}
	})
	wg.Wait()
	close(stepping)
	clock.Wait()
}
