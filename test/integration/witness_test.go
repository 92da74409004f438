//go:build integration

package integration

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/internal/loopdev"
)

// mountWitness is between the kubelets of several nodes and their drivers, and refuses to let a disk be mounted on two nodes at once. Before a
// node stages a disk, it reads the disk's claim, which the node that has it staged has left on the disk itself, in the boot block, which no
// file system uses; and it searches the mounts of all processes of the machine, which the nodes share, for the disk.
type mountWitness struct {
	disks string // the directory with the images of volumes

	mu         sync.Mutex // guards what follows, and the disks' claims
	violations []error
	staged     int
	// unformatted has the nodes of disks that had no file system, and therefore no claim, when they were staged.
	unformatted map[string]string
}

// diskClaim is what is on a disk.
type diskClaim struct {
	Node       string `json:"node"` // empty: the disk is not staged
	Generation int    `json:"generation"`
}

// claimSize is the size of a claim, and of the direct I/O with which it is read and written: no cache is in between.
const claimSize = 512

// ext4MagicOffset is where an ext4 has its magic number. A disk without a file system gets no claim: mkfs would destroy it, or refuse the disk.
const ext4MagicOffset, ext4Magic = 1024 + 0x38, 0xEF53

// errMountedTwice is what the witness is for.
var errMountedTwice = errors.New("the disk would be mounted twice")

func newMountWitness(disks string) *mountWitness {
	return &mountWitness{disks: disks, unformatted: make(map[string]string)}
}

// around is the function of a csiProxy before the driver of the node.
func (w *mountWitness) around(node string) aroundCall {
	return func(method string, request []byte, call func() error) error {
		switch path.Base(method) {
		case "NodeStageVolume":
			var stage csi.NodeStageVolumeRequest
			if err := proto.Unmarshal(request, &stage); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			if err := w.stage(node, w.image(stage.GetVolumeId())); err != nil {
				return status.Error(codes.FailedPrecondition, err.Error())
			}
			return call()
		case "NodeUnstageVolume":
			var unstage csi.NodeUnstageVolumeRequest
			if err := proto.Unmarshal(request, &unstage); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			if err := call(); err != nil {
				return err
			}
			return w.unstage(node, w.image(unstage.GetVolumeId()))
		}
		return call()
	}
}

func (w *mountWitness) image(volume string) string {
	return filepath.Join(w.disks, "volumes", volume, "disk.img")
}

// stage claims the disk for the node, or returns an error if it is another one's.
func (w *mountWitness) stage(node, image string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	claim, formatted, err := readClaim(image)
	if err != nil {
		return fmt.Errorf("read the claim of %s: %w", image, err)
	}
	if claim.Node == "" {
		claim.Node = w.unformatted[image]
	}
	if claim.Node != "" && claim.Node != node {
		return w.violation(fmt.Errorf("%w: %s stages %s, which %s has since generation %d", errMountedTwice, node, image, claim.Node, claim.Generation))
	}
	if claim.Node == node {
		return nil // a node repeats calls for a disk that it has
	}
	mounts, err := mountsOfDisk(image)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return w.violation(fmt.Errorf("%w: %s stages %s, which is mounted: %v", errMountedTwice, node, image, mounts))
	}
	w.staged++
	if !formatted {
		w.unformatted[image] = node
		return nil
	}
	return writeClaim(image, diskClaim{Node: node, Generation: claim.Generation + 1})
}

// unstage removes the claim of the node, whose driver has reported that it has unmounted the disk: it must have. A node may repeat the call after
// another one has staged the disk.
func (w *mountWitness) unstage(node, image string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	claim, formatted, err := readClaim(image)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the volume was deleted
	}
	if err != nil {
		return fmt.Errorf("read the claim of %s: %w", image, err)
	}
	if claim.Node == "" {
		claim.Node = w.unformatted[image]
	}
	if claim.Node != node || !formatted {
		return nil
	}
	delete(w.unformatted, image)
	mounts, err := mountsOfDisk(image)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return w.violation(fmt.Errorf("%s has unstaged %s, which is still mounted: %v", node, image, mounts))
	}
	if err := waitUnmounted(image); err != nil {
		return err
	}
	return writeClaim(image, diskClaim{Generation: claim.Generation})
}

// powerLost removes the claims of a node whose processes and mounts have ended.
func (w *mountWitness) powerLost(node string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	images, err := filepath.Glob(w.image("*"))
	if err != nil {
		return err
	}
	for _, image := range images {
		claim, formatted, err := readClaim(image)
		if err != nil || !formatted || claim.Node != node && w.unformatted[image] != node {
			continue // the disk was not used yet, or is another node's
		}
		delete(w.unformatted, image)
		if err := waitUnmounted(image); err != nil {
			return err
		}
		if err := writeClaim(image, diskClaim{Generation: claim.Generation}); err != nil {
			return err
		}
	}
	return nil
}

func (w *mountWitness) violation(err error) error {
	w.violations = append(w.violations, err)
	return err
}

// requireNoViolation checks that nothing was mounted twice, and that the witness has seen enough to know.
func (w *mountWitness) requireNoViolation(t testing.TB, atLeast int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NoError(t, errors.Join(w.violations...))
	require.GreaterOrEqual(t, w.staged, atLeast, "disks staged, of which the witness knows")
}

// direct opens a file for direct I/O, and calls use with a buffer that is aligned for it.
func direct(image string, mode int, use func(file *os.File, buffer []byte) error) error {
	file, err := os.OpenFile(image, mode|unix.O_DIRECT|unix.O_DSYNC, 0)
	if err != nil {
		return err
	}
	memory := make([]byte, 3*directBlock)
	offset := directBlock - int(uintptr(unsafe.Pointer(&memory[0]))%directBlock)
	return errors.Join(use(file, memory[offset:][:directBlock]), file.Close())
}

// directBlock is the unit of direct I/O, which is that of the disk below.
const directBlock = 4096

func readClaim(image string) (claim diskClaim, formatted bool, err error) {
	err = direct(image, os.O_RDONLY, func(file *os.File, buffer []byte) error {
		if _, err := file.ReadAt(buffer, 0); err != nil {
			return err
		}
		formatted = binary.LittleEndian.Uint16(buffer[ext4MagicOffset:]) == ext4Magic
		if text := bytes.TrimRight(buffer[:claimSize], "\x00"); len(text) > 0 {
			return json.Unmarshal(text, &claim)
		}
		return nil
	})
	return claim, formatted, err
}

// waitUnmounted waits until no file system has the disk: the last one to leave writes its superblock, and the claim as it was before.
func waitUnmounted(image string) error {
	devices, err := loopdev.New().List(func(backing string) bool { return backing == image })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	for _, device := range devices {
		released := waitUntil(ctx, func() bool {
			file, err := loopdev.New().Open(device.Number, os.O_RDONLY|os.O_EXCL)
			if err == nil {
				_ = file.Close() // it was only read
			}
			return !errors.Is(err, unix.EBUSY)
		})
		if !released {
			return fmt.Errorf("loop device %d of %s is still in use", device.Number, image)
		}
	}
	return nil
}

// writeClaim writes the claim. The disk is not mounted: the file system's own writes cover the same block.
func writeClaim(image string, claim diskClaim) error {
	return direct(image, os.O_RDWR, func(file *os.File, buffer []byte) error {
		if _, err := file.ReadAt(buffer, 0); err != nil {
			return err
		}
		text, err := json.Marshal(claim)
		if err != nil {
			return err
		}
		clear(buffer[:claimSize])
		copy(buffer[:claimSize], text)
		_, err = file.WriteAt(buffer, 0)
		return err
	})
}

// mountsOfDisk lists the mounts of a disk image in all mount namespaces of the machine.
func mountsOfDisk(image string) ([]string, error) {
	devices, err := loopdev.New().List(func(backing string) bool { return backing == image })
	if err != nil {
		return nil, err
	}
	wanted := make(map[string]bool)
	for _, device := range devices {
		var info unix.Stat_t
		if err := unix.Stat(loopdev.New().Path(device.Number), &info); err != nil {
			return nil, fmt.Errorf("stat loop device %d: %w", device.Number, err)
		}
		wanted[fmt.Sprintf("%d:%d", unix.Major(info.Rdev), unix.Minor(info.Rdev))] = true
	}
	var found []string
	seen := make(map[string]bool)
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, process := range processes {
		namespace, err := os.Readlink(filepath.Join(process, "ns", "mnt"))
		if err != nil || seen[namespace] {
			continue // it has ended, or shares its mounts with another one
		}
		file, err := os.Open(filepath.Join(process, "mountinfo"))
		if err != nil {
			continue // it has ended
		}
		infos, err := mountinfo.GetMountsFromReader(file, nil)
		_ = file.Close()
		if err != nil {
			continue // it ends just now; a namespace that has other processes is read with the next one
		}
		seen[namespace] = true
		for _, info := range infos {
			if wanted[fmt.Sprintf("%d:%d", info.Major, info.Minor)] {
				found = append(found, fmt.Sprintf("%s at %s", filepath.Base(process), info.Mountpoint))
			}
		}
	}
	return found, nil
}

// TestWitnessSeesDoubleMounts mounts a disk twice, in the ways that the witness is for.
func TestWitnessSeesDoubleMounts(t *testing.T) {
	require.Zero(t, os.Geteuid(), "these tests need root")
	w := newMountWitness(t.TempDir())
	image := w.image("vol-1")
	require.NoError(t, os.MkdirAll(filepath.Dir(image), 0o700))
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 32<<20))
	command := func(name string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
	}
	require.NoError(t, w.stage("machine-1", image), "a disk that is not formatted belongs to none")
	require.NoError(t, w.stage("machine-1", image), "a call may be repeated")
	require.ErrorIs(t, w.stage("machine-2", image), errMountedTwice, "before there is a claim")
	command("mkfs.ext4", "-q", "-b", "4096", image)
	require.NoError(t, w.unstage("machine-1", image))
	require.NoError(t, w.stage("machine-1", image))
	require.NoError(t, w.stage("machine-1", image), "a call may be repeated")
	point := t.TempDir()
	command("mount", "-o", "loop", image, point)
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) }) // the test unmounts it

	require.ErrorIs(t, w.stage("machine-2", image), errMountedTwice, "the claim on the disk")
	require.ErrorContains(t, w.unstage("machine-1", image), "still mounted")

	// A mount in the namespace of another process alone, as a container has it.
	require.NoError(t, writeClaim(image, diskClaim{}))
	holder := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat")
	stdin, err := holder.StdinPipe()
	require.NoError(t, err)
	stdout, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	_, err = stdout.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, unix.Unmount(point, 0))
	err = w.stage("machine-2", image)
	require.ErrorIs(t, err, errMountedTwice, "the mount of another process")
	require.Contains(t, err.Error(), fmt.Sprint(holder.Process.Pid))
	require.NoError(t, stdin.Close())
	require.NoError(t, holder.Wait())
	require.NoError(t, w.powerLost("machine-1"))

	require.NoError(t, w.stage("machine-2", image), "nothing has it mounted")
	require.NoError(t, w.unstage("machine-1", image), "a late call of the one that had it")
	claim, formatted, err := readClaim(image)
	require.NoError(t, err)
	require.True(t, formatted)
	require.Equal(t, "machine-2", claim.Node)
	command("mount", "-o", "loop", image, point)
	require.NoError(t, unix.Unmount(point, 0))
	claim, _, err = readClaim(image)
	require.NoError(t, err)
	require.Equal(t, "machine-2", claim.Node, "a mount keeps the claim")
	require.NoError(t, w.unstage("machine-2", image))
	require.NoError(t, fsck(image), "the claim is no part of the file system")
	require.Len(t, w.violations, 4)
	require.ErrorContains(t, errors.Join(w.violations...), "twice")
}
