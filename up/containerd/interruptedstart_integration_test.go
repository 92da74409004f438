//go:build integration

package containerd_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/up/containerd"
)

var interruptRounds = flag.Int("cut-rounds", 0, "how many moments of a start TestStartsThatAreCutOff tries, for each way to cut it off; 0: none")

const shell = "berth.local/shell:test"

// interrupter starts containers and cuts the starts off.
type interrupter struct {
	*fixture
	t       testing.TB
	exits   *containerd.ExitRecords
	logs    string
	journal string
	boxes   []string
	configs []*runtimeapi.PodSandboxConfig
	made    int
	found   map[string]int
}

// TestStartsThatAreCutOff cuts StartContainer off at one moment after the other: its caller goes away, containerd is ended
// as with its caller, is killed, or is killed once more while it looks at what there is. The containers would never end by
// themselves. Whatever containerd says of them afterwards, they run, or they are taken for ones that were only made; one
// that would count as ended would be a restart for nothing. One that runs from the beginning goes on.
func TestStartsThatAreCutOff(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	c := &interrupter{fixture: n, t: t, logs: t.TempDir(), journal: t.TempDir(), found: map[string]int{}}
	var err error
	c.exits, err = containerd.NewExitRecords(containerd.ExitRecordsDeps{Logger: slog.New(slog.NewTextHandler(n.log, nil))}, n.Config)
	require.NoError(t, err)
	c.importShell()
	const pods = 4
	for i := range pods {
		config := n.sandbox(fmt.Sprintf("cut%d", i), c.logs, false)
		box, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		require.NoError(t, err)
		c.boxes, c.configs = append(c.boxes, box.PodSandboxId), append(c.configs, config)
	}
	healthy := c.create(0)
	_, err = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: healthy})
	require.NoError(t, err)
	whole := c.round("not cut off", time.Hour, nil)
	for way, cut := range map[string]func(cancel func(), moment time.Duration){
		"caller gone": func(cancel func(), _ time.Duration) { cancel() },
		"parent gone": func(cancel func(), _ time.Duration) {
			require.NoError(t, n.daemon.Process.Signal(containerd.StopSignal))
			cancel()
			_ = n.daemon.Wait()
			c.restart()
		},
		"killed": func(func(), time.Duration) { n.kill(t); c.restart() },
		"killed twice": func(_ func(), moment time.Duration) {
			n.kill(t)
			require.NoError(t, c.exits.Recover(t.Context()))
			n.launch(t)
			time.Sleep(2 * moment) // a moment in the middle of its start
			require.NoError(t, n.daemon.Process.Kill())
			_ = n.daemon.Wait()
			c.restart()
		},
	} {
		for i := range *interruptRounds {
			moment := time.Duration(1+i) * whole * 5 / 4 / time.Duration(*interruptRounds)
			c.round(way, moment, cut)
			lives, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: healthy})
			require.NoError(t, err)
			require.Equal(t, runtimeapi.ContainerState_CONTAINER_RUNNING, lives.Status.State, "%s at %s: %v", way, moment, lives)
		}
	}
	for what, times := range c.found {
		t.Logf("%3d %s", times, what)
	}
	for _, box := range c.boxes {
		_, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: box})
		require.NoError(t, err)
		_, err = n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: box})
		require.NoError(t, err)
	}
	n.kill(t) // as berth, which removes what interrupted calls have left when containerd starts
	c.restart()
	_, err = n.KillOrphanShims(t.Context())
	require.NoError(t, err)
	_, err = n.DeleteOrphanContainers(t.Context())
	require.NoError(t, err)
	n.stop(t)
	require.NoError(t, errors.Join(n.RemoveDeadSockets(), n.RemoveDeadBundles()))
	require.Empty(t, glob(t, n.State()+"/io.containerd.runtime.v2.task/k8s.io/*"))
	n.requireNothingLeft(t)
	n.clean(t)
}

// importShell brings in the image of the containers.
func (c *interrupter) importShell() {
	c.importImages(c.t)
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(c.t, err, "apt-get install busybox-static (make deps does)")
	image, err := imagestore.Build(imagestore.BuildSpec{Name: shell, Binary: busybox, Path: "/bin/busybox"})
	require.NoError(c.t, err)
	store, err := imagestore.Open(c.t.Context(), c.Socket())
	require.NoError(c.t, err)
	require.NoError(c.t, store.Ensure(c.t.Context(), image))
	require.NoError(c.t, store.Close())
}

// restart starts containerd as berth does.
func (c *interrupter) restart() {
	require.NoError(c.t, c.exits.Recover(c.t.Context()))
	_ = c.conn.Close() // it may be closed
	c.start(c.t)
	c.exits.FinishRecovery(c.t.Context())
}

// create makes a container in a Pod, that writes into its journal that it runs.
func (c *interrupter) create(i int) string {
	c.made++
	name := fmt.Sprintf("c%d", c.made)
	i %= len(c.boxes)
	made, err := c.CreateContainer(c.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: c.boxes[i], SandboxConfig: c.configs[i],
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: shell},
			Command: []string{"/bin/busybox", "sh", "-c", "echo start >> /journal/" + name + "; while :; do sleep 1000; done"},
			Mounts:  []*runtimeapi.Mount{{ContainerPath: "/journal", HostPath: c.journal}},
			LogPath: name + ".log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: c.configs[i].Linux.SecurityContext.NamespaceOptions,
			}},
		},
	})
	require.NoError(c.t, err)
	return made.ContainerId
}

// round starts a container in each Pod, cuts the starts off, and looks at what has become of them. It returns how long
// the starts took.
func (c *interrupter) round(way string, moment time.Duration, cut func(cancel func(), moment time.Duration)) time.Duration {
	t := c.t
	ids := make([]string, len(c.boxes))
	answers := make([]error, len(ids))
	for i := range ids {
		ids[i] = c.create(i)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var starting sync.WaitGroup
	client := c.RuntimeServiceClient
	for i, id := range ids {
		starting.Go(func() {
			_, answers[i] = client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		})
	}
	began := time.Now()
	if cut != nil {
		time.Sleep(moment) // of the start
		cut(cancel, moment)
	}
	starting.Wait()
	took := time.Since(began)
	for i, id := range ids {
		var answer *runtimeapi.ContainerStatusResponse
		require.Eventually(t, func() bool {
			var err error
			answer, err = c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
			require.NoError(t, err)
			// A start whose caller has gone is still being taken back.
			return way != "caller gone" || answers[i] == nil || answer.Status.State != runtimeapi.ContainerState_CONTAINER_CREATED
		}, waitTimeout, 5*time.Millisecond)
		s := answer.Status
		_, err := os.Stat(filepath.Join(c.journal, s.Metadata.Name))
		what := fmt.Sprintf("%-12s ran %-5v answer %-5v: %s started %-5v finished %-5v code %d reason %q message %q", way, err == nil, answers[i] == nil,
			s.State, s.StartedAt != 0, s.FinishedAt != 0, s.ExitCode, s.Reason, strings.ReplaceAll(s.Message, id, "ID"))
		c.found[what]++
		taken := container.ContainerFromCRI(s).State
		if taken != container.StateRunning && taken != container.StateCreated {
			t.Errorf("the start of %s, cut off after %s, counts as %s: %s", id, moment, taken, what)
		}
		_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
		if status.Code(err) == codes.FailedPrecondition { // it has a task that only berth deletes
			deleted, err := c.DeleteOrphanTasks(t.Context())
			require.NoError(t, err)
			require.Contains(t, deleted, id, what)
			c.found["of these not removable until its task was deleted: "+what]++
			_, err = c.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
			require.NoError(t, err, what)
			continue
		}
		require.NoError(t, err, what)
	}
	return took
}
