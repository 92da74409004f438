package scheduler

import (
	"encoding/json"
	"fmt"

	componentconfig "k8s.io/component-base/config/v1alpha1"
	schedulerv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controlplane/scheduler/volumebinding"
)

// configuration returns kube-scheduler's configuration file: its own default profile
// with our plugin in place of the one that it replaces.
func configuration(kubeconfig string) ([]byte, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("create default configuration: %w", err)
	}
	if len(defaults.Profiles) != 1 {
		return nil, fmt.Errorf("the default configuration has %d profiles, want one", len(defaults.Profiles))
	}
	profile := defaults.Profiles[0]
	plugins := schedulerv1.PluginSet{Disabled: []schedulerv1.Plugin{{Name: "*"}}}
	replaced := false
	for _, plugin := range profile.Plugins.MultiPoint.Enabled {
		if plugin.Name == volumebinding.Replaces {
			plugin.Name, replaced = volumebinding.Name, true
		}
		own := schedulerv1.Plugin{Name: plugin.Name}
		if plugin.Weight != 0 {
			own.Weight = ptr.To(plugin.Weight)
		}
		plugins.Enabled = append(plugins.Enabled, own)
	}
	if !replaced {
		return nil, fmt.Errorf("the default profile has no plugin %s to replace", volumebinding.Replaces)
	}
	file := schedulerv1.KubeSchedulerConfiguration{
		LeaderElection: componentconfig.LeaderElectionConfiguration{LeaderElect: ptr.To(false)},
		ClientConnection: componentconfig.ClientConnectionConfiguration{
			Kubeconfig: kubeconfig,
			QPS:        -1, // below zero: no client-side limit
			Burst:      1000,
		},
		DebuggingConfiguration: componentconfig.DebuggingConfiguration{EnableProfiling: ptr.To(false)},
		Profiles: []schedulerv1.KubeSchedulerProfile{{
			SchedulerName: ptr.To(profile.SchedulerName),
			Plugins:       &schedulerv1.Plugins{MultiPoint: plugins},
		}},
	}
	file.APIVersion, file.Kind = schedulerv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	return json.Marshal(file)
}
