package scheduler

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	real "k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/berth-dev/berth/controlplane/scheduler/volumebinding"
)

// load reads configuration as kube-scheduler does.
func load(t *testing.T) *schedulerconfig.KubeSchedulerConfiguration {
	t.Helper()
	data, err := configuration("/somewhere/scheduler.kubeconfig")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "scheduler.json")
	require.NoError(t, os.WriteFile(file, data, 0o600))
	loaded, err := options.LoadConfigFromFile(klog.Background(), file)
	require.NoError(t, err)
	require.NoError(t, validation.ValidateKubeSchedulerConfiguration(loaded))
	return loaded
}

func TestConfiguration(t *testing.T) {
	loaded := load(t)
	require.Equal(t, "/somewhere/scheduler.kubeconfig", loaded.ClientConnection.Kubeconfig)
	require.EqualValues(t, -1, loaded.ClientConnection.QPS)
	require.False(t, loaded.LeaderElection.LeaderElect)
	require.False(t, loaded.EnableProfiling)
	require.Len(t, loaded.Profiles, 1)
	require.Equal(t, "default-scheduler", loaded.Profiles[0].SchedulerName)
}

// TestPluginReplacesUpstreamsEverywhere builds the real scheduler twice, from our
// configuration and from its own, and requires the same plugins in the same order at
// each extension point, except for the name of one.
func TestPluginReplacesUpstreamsEverywhere(t *testing.T) {
	defaults, err := latest.Default()
	require.NoError(t, err)
	theirs := build(t, defaults.Profiles)
	ours := build(t, load(t).Profiles)

	want, got := pluginsByPoint(theirs), pluginsByPoint(ours)
	points := 0
	for point, plugins := range want {
		for i, plugin := range plugins {
			if plugin.Name == volumebinding.Replaces {
				plugins[i].Name = volumebinding.Name
				points++
			}
		}
		require.Equal(t, plugins, got[point], "at %s", point)
	}
	require.GreaterOrEqual(t, points, 6, "the plugin of upstream was hardly found: is this test right?")

	named := func(extensions []fwk.EnqueueExtensions) []string {
		var names []string
		for _, extension := range extensions {
			name := extension.Name()
			if name == volumebinding.Replaces {
				name = volumebinding.Name
			}
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	require.Equal(t, named(theirs.EnqueueExtensions()), named(ours.EnqueueExtensions()))
	// Two names, one plugin: a Pod that it refused must be found again by its events.
	require.Equal(t, eventsOf(t, theirs, volumebinding.Replaces), eventsOf(t, ours, volumebinding.Name))
}

func build(t *testing.T, profiles []schedulerconfig.KubeSchedulerProfile) framework.Framework {
	t.Helper()
	registry := runtime.Registry{}
	require.NoError(t, app.WithPlugin(volumebinding.Name, volumebinding.New)(registry))
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	scheduler, err := real.New(ctx, client, informers.NewSharedInformerFactory(client, 0), nil,
		func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1) },
		real.WithProfiles(profiles...), real.WithFrameworkOutOfTreeRegistry(registry))
	require.NoError(t, err)
	t.Cleanup(cancel)
	require.Contains(t, scheduler.Profiles, "default-scheduler")
	return scheduler.Profiles["default-scheduler"]
}

func pluginsByPoint(f framework.Framework) map[string][]schedulerconfig.Plugin {
	p := f.ListPlugins()
	return map[string][]schedulerconfig.Plugin{
		"PreEnqueue": p.PreEnqueue.Enabled, "QueueSort": p.QueueSort.Enabled, "PreFilter": p.PreFilter.Enabled,
		"Filter": p.Filter.Enabled, "PostFilter": p.PostFilter.Enabled, "PreScore": p.PreScore.Enabled,
		"Score": p.Score.Enabled, "Reserve": p.Reserve.Enabled, "Permit": p.Permit.Enabled,
		"PreBind": p.PreBind.Enabled, "Bind": p.Bind.Enabled, "PostBind": p.PostBind.Enabled,
	}
}

func eventsOf(t *testing.T, f framework.Framework, name string) []fwk.ClusterEvent {
	t.Helper()
	for _, extension := range f.EnqueueExtensions() {
		if extension.Name() != name {
			continue
		}
		hints, err := extension.EventsToRegister(t.Context())
		require.NoError(t, err)
		var all []fwk.ClusterEvent
		for _, hint := range hints {
			all = append(all, hint.Event)
		}
		require.NotEmpty(t, all)
		return all
	}
	t.Fatalf("no plugin %s", name)
	return nil
}
