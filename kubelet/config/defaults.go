package config

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
)

// The API server's defaults, which it does not set on a static Pod.
const (
	defaultGraceSeconds  = 30
	defaultFileMode      = 0o644
	defaultProbePeriod   = 10
	defaultProbeFailures = 3
)

// setDefaults sets the API server's defaults of the fields that the kubelet reads.
func setDefaults(pod *corev1.Pod) {
	spec := &pod.Spec
	orDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	orDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	orDefault(&spec.SchedulerName, corev1.DefaultSchedulerName)
	orNew(&spec.TerminationGracePeriodSeconds, defaultGraceSeconds)
	orNew(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	orNew(&spec.SecurityContext, corev1.PodSecurityContext{})
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for c := range podutil.Containers(spec) {
		defaultContainer(c, spec.HostNetwork)
	}
	defaultPodResources(pod)
}

func orDefault[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func orNew[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}

func defaultContainer(c *corev1.Container, hostNetwork bool) {
	orDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	orDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	orDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
	for i := range c.Ports {
		p := &c.Ports[i]
		orDefault(&p.Protocol, corev1.ProtocolTCP)
		if hostNetwork && p.HostPort == 0 {
			p.HostPort = p.ContainerPort
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			orDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			defaultProbe(probe)
		}
	}
	if c.Lifecycle != nil {
		for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if hook != nil {
				defaultHTTPGet(hook.HTTPGet)
			}
		}
	}
	defaultRequests(&c.Resources)
}

// defaultRequests sets missing requests to the limits.
func defaultRequests(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		setMissing(&r.Requests, name, limit)
	}
}

// setMissing adds the amount of a resource to a list that does not have the resource.
func setMissing(list *corev1.ResourceList, name corev1.ResourceName, amount resource.Quantity) {
	if _, set := (*list)[name]; set {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = amount.DeepCopy()
}

func defaultProbe(p *corev1.Probe) {
	for field, value := range map[*int32]int32{
		&p.TimeoutSeconds: 1, &p.PeriodSeconds: defaultProbePeriod, &p.SuccessThreshold: 1,
		&p.FailureThreshold: defaultProbeFailures,
	} {
		if *field == 0 {
			*field = value
		}
	}
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		orNew(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(get *corev1.HTTPGetAction) {
	if get != nil {
		orDefault(&get.Path, "/")
		orDefault(&get.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if v.Image != nil {
		orDefault(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.HostPath != nil {
		orNew(&v.HostPath.Type, corev1.HostPathUnset)
	}
	if v.DownwardAPI != nil {
		orNew(&v.DownwardAPI.DefaultMode, defaultFileMode)
		defaultItems(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		orNew(&v.Projected.DefaultMode, defaultFileMode)
		for i := range v.Projected.Sources {
			if d := v.Projected.Sources[i].DownwardAPI; d != nil {
				defaultItems(d.Items)
			}
		}
	}
}

func defaultItems(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		if items[i].FieldRef != nil {
			orDefault(&items[i].FieldRef.APIVersion, "v1")
		}
	}
}

// pullPolicy returns Always for an image whose tag may move: latest, or neither a tag nor a digest.
func pullPolicy(image string) corev1.PullPolicy {
	name, digest, _ := strings.Cut(image, "@")
	// A colon before the last slash belongs to the registry's port.
	_, tag, tagged := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
	if tag == "latest" || !tagged && digest == "" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}
