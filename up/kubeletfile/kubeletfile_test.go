package kubeletfile_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/up/kubeletfile"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "kubelet.yaml")
	require.NoError(t, os.WriteFile(path, []byte(header+text), 0o600))
	return path
}

func TestFieldsAreSet(t *testing.T) {
	file, err := kubeletfile.Read(write(t, `
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
maxPods: 20
containerLogMaxSize: 1Mi
cpuCFSQuotaPeriod: 50ms
`))
	require.NoError(t, err)
	config := agent.Config{
		Pods: agent.PodConfig{SeccompDefault: true},
		Cgroups: agent.CgroupConfig{Enforcement: cm.Enforcement{KubeReserved: corev1.ResourceList{
			"cpu": resource.MustParse("100m"), "memory": resource.MustParse("1Gi"),
		}}},
	}
	before := config.Cgroups.Enforcement.KubeReserved
	file.Apply(&config)
	require.True(t, config.Managers.StaticCPUs)
	require.True(t, config.Managers.CPUOptions.FullCores)
	require.Equal(t, hints.Restricted, config.Managers.Policy)
	require.Equal(t, "0", config.Cgroups.ReservedCPUs)
	require.Equal(t, corev1.ResourceList{"memory": resource.MustParse("1Gi")}, config.Cgroups.Enforcement.KubeReserved, "the CPUs stand in for the amount")
	require.Equal(t, int64(1), config.Cgroups.Enforcement.SystemReserved.Cpu().Value())
	require.Contains(t, before, corev1.ResourceCPU, "what others have is not changed")
	require.Equal(t, int64(20), *config.Pods.Max)
	require.Equal(t, int64(1<<20), config.Logs.MaxSize)
	require.Equal(t, 50*time.Millisecond, config.Cgroups.CPUQuotaPeriod)
	require.True(t, config.Pods.SeccompDefault, "fields that the file lacks stay")
	require.Zero(t, config.Images.GCHigh)
}

func TestFieldsOfTheClusterAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"port: 10250\n": "the command or one of its flags decides these fields: port; the file may have ",
		"kubeReserved: {cpu: \"1\"}\nclusterDomain: x.y\n": "clusterDomain, kubeReserved (--kube-reserved); the file may have ",
		"cpuManagerPolicy: dynamic\n":                      "cpuManagerPolicy",
		"cpuManagerPolitics: static\n":                     "unknown field",
		"maxPods: -1\n":                                    "maxPods",
	} {
		_, err := kubeletfile.Read(write(t, text))
		require.ErrorContains(t, err, want, text)
	}
	_, err := kubeletfile.Read("/does/not/exist")
	require.ErrorContains(t, err, "/does/not/exist")
}
