package testbed

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

var kubeletConfiguration = metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"}

// upstreamConfig writes the kubelet's configuration: its defaults, without limits on its requests, and what this kind
// of machine asks for. Feature gates are at their defaults, among which is PLEGOnDemandRelist; EventedPLEG makes nodes
// NotReady in this version.
func upstreamConfig(c *Cluster, root, logs string, port int, change NodeConfig) (string, error) {
	no, none := false, int32(0)
	requests := int32(100_000) // as good as no limit; there is no value for that
	config := kubeletconfig.KubeletConfiguration{
		TypeMeta: kubeletConfiguration,
		Address:  "127.0.0.1", Port: int32(port), HealthzPort: &none, OOMScoreAdj: &none,
		Authentication: kubeletconfig.KubeletAuthentication{
			X509: kubeletconfig.KubeletX509Authentication{ClientCAFile: filepath.Join(c.DataDir, "pki", "ca.crt")},
		},
		ContainerRuntimeEndpoint: c.Runtime, PodLogsDir: logs, CgroupRoot: c.CgroupRoot, CgroupDriver: "cgroupfs",
		FailSwapOn: &no, FailCgroupV1: &no, KubeAPIQPS: &requests, KubeAPIBurst: requests, EventRecordQPS: &none,
		VolumePluginDir: filepath.Join(root, "plugins"),
		// A disk that fills up for other reasons must not evict the Pods that are measured.
		EvictionHard:           map[string]string{"memory.available": "1Mi"},
		EnforceNodeAllocatable: []string{"none"},
	}
	maps.Copy(config.EvictionHard, change.EvictionHard)
	if change.StaticCPUs {
		config = staticCPUs(config)
	}
	path := filepath.Join(root, "config.json")
	return path, writeConfig(path, config)
}

// staticCPUs has a kubelet give CPUs of their own to containers.
func staticCPUs(config kubeletconfig.KubeletConfiguration) kubeletconfig.KubeletConfiguration {
	config.CPUManagerPolicy, config.ReservedSystemCPUs = "static", "0"
	return config
}

// writeConfig writes a kubelet's configuration, without the fields that have no value: some kubelets refuse fields that do nothing.
func writeConfig(path string, config kubeletconfig.KubeletConfiguration) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { return isEmpty(value) })
	delete(fields, "logging") // its fields are there even if nothing set them
	if text, err = json.Marshal(fields); err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write the kubelet's configuration: %w", err)
	}
	return nil
}

// isEmpty reports whether a decoded value stands for a field that was not set.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case string:
		return value == "" || value == "0s"
	case map[string]any:
		for _, inner := range value {
			if !isEmpty(inner) {
				return false
			}
		}
		return true
	}
	return false
}
