package kubelet

import (
	"net"

	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/server"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// KubeletBootstrap is how a Kubelet is brought up.
type KubeletBootstrap interface {
	GetConfiguration() kubeletconfig.KubeletConfiguration
	BirthCry()
	StartGarbageCollection()
	ListenAndServe(address net.IP, port uint, tlsOptions *server.TLSOptions, auth server.AuthInterface,
		enableDebuggingHandlers bool)
	ListenAndServeReadOnly(address net.IP, port uint)
	Run(updates <-chan kubelettypes.PodUpdate)
	RunOnce(updates <-chan kubelettypes.PodUpdate) ([]RunPodResult, error)
}

// SyncHandler takes the changes of Pods.
type SyncHandler interface {
	HandlePodAdditions(pods []*corev1.Pod)
	HandlePodUpdates(pods []*corev1.Pod)
	HandlePodRemoves(pods []*corev1.Pod)
	HandlePodReconcile(pods []*corev1.Pod)
	HandlePodSyncs(pods []*corev1.Pod)
	HandlePodCleanups() error
}

// RunPodResult is what came of one Pod of RunOnce: nil if it runs or has succeeded.
type RunPodResult struct {
	Pod *corev1.Pod
	Err error
}
