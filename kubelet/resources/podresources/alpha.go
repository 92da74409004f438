package podresources

import (
	"context"

	alphaapi "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// alphaVersion is the value of the label of metrics.
const alphaVersion = "v1alpha1"

// alphaServer serves the first version of the API, which has devices alone. Some clients know no other.
type alphaServer struct {
	alphaapi.UnsafePodResourcesListerServer
	main *Server
}

// List implements alphaapi.PodResourcesListerServer.
func (s *alphaServer) List(ctx context.Context, _ *alphaapi.ListPodResourcesRequest) (*alphaapi.ListPodResourcesResponse, error) {
	s.main.deps.Metrics.PodResources[metrics.RequestsTotal].WithLabelValues(alphaVersion).Inc()
	pods, err := s.main.pods(ctx)
	if err != nil {
		return nil, err
	}
	out := &alphaapi.ListPodResourcesResponse{}
	for _, pod := range pods {
		of := &alphaapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for i := range pod.Spec.Containers {
			c := &alphaapi.ContainerResources{Name: pod.Spec.Containers[i].Name}
			for _, d := range s.main.deps.Source.ContainerResources(pod, &pod.Spec.Containers[i]).Devices {
				c.Devices = append(c.Devices, &alphaapi.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds})
			}
			of.Containers = append(of.Containers, c)
		}
		out.PodResources = append(out.PodResources, of)
	}
	return out, nil
}
