package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
)

// TestAMissingKubeconfigIsNamedAtOnce: no part of the node waits for a file that nothing writes.
func TestAMissingKubeconfigIsNamedAtOnce(t *testing.T) {
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer log.Close()
	before := os.Stderr
	os.Stderr = log
	defer func() { os.Stderr = before }()
	path := filepath.Join(t.TempDir(), "missing")
	cmd := newNode()
	cmd.SetContext(t.Context())
	require.NoError(t, cmd.ParseFlags([]string{"--kubeconfig", path, "--socket", filepath.Join(t.TempDir(), "s")}))
	require.ErrorContains(t, cmd.RunE(cmd, nil), fmt.Sprintf("read kubeconfig %q: ", path))
	written, err := os.ReadFile(log.Name())
	require.NoError(t, err)
	require.Empty(t, string(written))
}

func TestNodeFlagsAreApplied(t *testing.T) {
	convert := func(args ...string) (agent.Config, error) {
		var flags nodeFlags
		cmd := newNodeWith(&flags)
		require.NoError(t, cmd.ParseFlags(args))
		chosen, err := flags.settings()
		if err != nil {
			return agent.Config{}, err
		}
		return chosen.Agent, nil
	}
	config, err := convert()
	require.NoError(t, err)
	require.False(t, config.Pods.SeccompDefault || config.Cgroups.FailSwapOn || config.Cgroups.FailV1)
	require.Nil(t, config.Cgroups.SingleProcessOOMKill)
	require.Equal(t, "127.0.0.1:10248", config.Server.HealthzAddress)
	require.Empty(t, config.Server.ReadOnlyAddress)
	require.False(t, config.Server.Profiling || config.Server.DebugFlags || config.Server.NoDebugging || config.Server.Auth.Anonymous)
	require.Equal(t, 4, config.Images.MaxParallelPulls)
	require.InDelta(t, 5, config.Images.PullQPS, 0)
	require.Empty(t, config.KernelDefaults)
	config, err = convert("--seccomp-default", "--swap-behavior=LimitedSwap", "--single-process-oom-kill=false", "--pod-max-pids=7",
		"--registry-qps=0.5", "--image-gc-high-threshold=0", "--fail-swap-on", "--container-log-max-size=-1")
	require.NoError(t, err)
	require.True(t, config.Pods.SeccompDefault && config.Cgroups.FailSwapOn)
	require.Equal(t, cm.LimitedSwap, config.Cgroups.SwapBehavior)
	require.False(t, *config.Cgroups.SingleProcessOOMKill)
	require.EqualValues(t, 7, config.Cgroups.PodPidsLimit)
	require.InDelta(t, 0.5, config.Images.PullQPS, 0)
	require.Equal(t, 100, config.Images.GCHigh, "never")
	require.EqualValues(t, -1, config.Logs.MaxSize, "never")
	config, err = convert("--max-pods=0")
	require.NoError(t, err)
	require.Zero(t, *config.Pods.Max)
	for flag, want := range map[string]string{
		"--swap-behavior=Unlimited": "--swap-behavior", "--enforce-node-allocatable=all": "enforceNodeAllocatable",
		"--container-log-max-size=large": "containerLogMaxSize", "--container-log-max-size=0": "containerLogMaxSize",
		"--container-log-max-files=1": "containerLogMaxFiles", "--kube-reserved=cpu=-1": "kubeReserved", "--cgroup-driver=docker": "--cgroup-driver",
	} {
		_, err := convert(flag)
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(usageError))
	}
}
