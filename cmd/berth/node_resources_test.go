package main

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
)

func TestResourceFlagsAreApplied(t *testing.T) {
	apply := func(args ...string) (agent.Config, error) {
		var flags resourceFlags
		set := pflag.NewFlagSet("node", pflag.ContinueOnError)
		flags.add(set)
		require.NoError(t, set.Parse(args))
		var config agent.Config
		return config, flags.apply(&config)
	}
	config, err := apply()
	require.NoError(t, err)
	require.False(t, config.Pods.SeccompDefault)
	require.Nil(t, config.Cgroups.SingleProcessOOMKill)
	config, err = apply("--seccomp-default", "--swap-behavior=LimitedSwap", "--single-process-oom-kill=false", "--pod-max-pids=7")
	require.NoError(t, err)
	require.True(t, config.Pods.SeccompDefault)
	require.Equal(t, cm.LimitedSwap, config.Cgroups.SwapBehavior)
	require.False(t, *config.Cgroups.SingleProcessOOMKill)
	require.EqualValues(t, 7, config.Cgroups.PodPidsLimit)
	for flag, want := range map[string]string{
		"--swap-behavior=Unlimited": "--swap-behavior", "--enforce-node-allocatable=all": "--enforce-node-allocatable",
		"--kube-reserved=cpu=-1": "kubeReserved",
	} {
		_, err := apply(flag)
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(usageError))
	}
}

func TestLogFlagsAreApplied(t *testing.T) {
	apply := func(args ...string) (agent.Config, error) {
		var flags logFlags
		set := pflag.NewFlagSet("node", pflag.ContinueOnError)
		flags.add(set)
		require.NoError(t, set.Parse(args))
		var config agent.Config
		return config, flags.apply(&config)
	}
	config, err := apply("--container-log-max-size=1Mi", "--container-log-max-files=3")
	require.NoError(t, err)
	require.Equal(t, agent.LogsConfig{MaxSize: 1 << 20, MaxFiles: 3}, config.Logs)
	for _, flag := range []string{"--container-log-max-size=large", "--container-log-max-size=-1", "--container-log-max-files=1"} {
		_, err := apply(flag)
		require.ErrorAs(t, err, new(usageError), flag)
	}
}
