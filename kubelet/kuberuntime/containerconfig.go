package kuberuntime

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/envvars"
	"github.com/berth-dev/berth/kubelet/securitycontext"
)

// signalNames converts the API's name of a real-time signal, such as SIGRTMIN+3, to the runtime's.
var signalNames = strings.NewReplacer("+", "PLUS", "-", "MINUS")

// ContainerInputs is what one container's configuration is built from.
type ContainerInputs struct {
	Pod *corev1.Pod
	// Start is the entry of Actions.Start.
	Start Start
	// ImageRef is the image service's reference of the image, and ImageUser the user that the image sets.
	ImageRef  string
	ImageUser securitycontext.ImageUser
	// Env is the resolved environment (envvars.Build), and Mounts what Builder.Mounts returned.
	Env    []envvars.Var
	Mounts []*runtimeapi.Mount
	// Devices and CDIDevices are passed on to the container. Devices must have every volumeDevice of the spec, by its
	// path in the container.
	Devices    []*runtimeapi.Device
	CDIDevices []*runtimeapi.CDIDevice
	// Annotations are set on the container beside its own.
	Annotations map[string]string
	// ExtraGroups and UserNamespace are those of the sandbox.
	ExtraGroups   []int64
	UserNamespace *runtimeapi.UserNamespace
}

// ContainerConfig builds the configuration of one container. An error is a *container.ConfigError and names the invalid
// field.
func (b *Builder) ContainerConfig(in ContainerInputs) (*runtimeapi.ContainerConfig, error) {
	pod, c := in.Pod, in.Start.Container
	linux, err := b.linuxContainer(in)
	if err != nil {
		return nil, container.NewConfigError(err)
	}
	for _, device := range c.VolumeDevices {
		if !hasDevice(in.Devices, device.DevicePath) {
			return nil, container.NewConfigError(fmt.Errorf("add volumeDevice %[2]q to container %[1]q: no block device is mapped",
				c.Name, device.Name))
		}
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Start.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: c.Image},
		Command:     envvars.ExpandAll(c.Command, in.Env),
		Args:        envvars.ExpandAll(c.Args, in.Env),
		WorkingDir:  c.WorkingDir,
		Labels:      containerLabels(pod, c),
		Annotations: containerAnnotations(pod, c, in.Start.Attempt, in.Annotations),
		Mounts:      in.Mounts,
		Devices:     in.Devices,
		CDIDevices:  in.CDIDevices,
		LogPath:     LogPath(c.Name, in.Start.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       linux,
	}
	for _, v := range in.Env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		signal, ok := runtimeapi.Signal_value[signalNames.Replace(string(*c.Lifecycle.StopSignal))]
		if !ok {
			return nil, container.NewConfigError(fmt.Errorf("read lifecycle.stopSignal %q of container %q: not a signal",
				*c.Lifecycle.StopSignal, c.Name))
		}
		config.StopSignal = runtimeapi.Signal(signal)
	}
	if in.UserNamespace != nil {
		for _, m := range config.Mounts {
			m.UidMappings, m.GidMappings = in.UserNamespace.Uids, in.UserNamespace.Gids
		}
	}
	return config, nil
}

func (b *Builder) linuxContainer(in ContainerInputs) (*runtimeapi.LinuxContainerConfig, error) {
	pod, c := in.Pod, in.Start.Container
	if err := checkUserNamespace(pod, in.UserNamespace); err != nil {
		return nil, err
	}
	ns := namespaces(pod, in.UserNamespace)
	if in.Start.Kind == podutil.Ephemeral {
		target := pod.Spec.EphemeralContainers[in.Start.Index].TargetContainerName
		switch {
		case target == "":
		case in.Start.TargetID == "":
			return nil, fmt.Errorf("unable to find target container %v", target)
		case ns.Pid == runtimeapi.NamespaceMode_CONTAINER:
			ns.Pid, ns.TargetId = runtimeapi.NamespaceMode_TARGET, in.Start.TargetID
		}
	}
	sc, err := securitycontext.Container(pod, c, securitycontext.Inputs{
		Image:          in.ImageUser,
		Namespaces:     ns,
		ExtraGroups:    in.ExtraGroups,
		SeccompRoot:    b.config.SeccompRoot,
		SeccompDefault: b.config.SeccompDefault,
	})
	if err != nil {
		return nil, err
	}
	return &runtimeapi.LinuxContainerConfig{
		Resources:       b.Resources(pod, c),
		SecurityContext: sc,
	}, nil
}

// Resources returns the runtime's resources of a container.
func (b *Builder) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	return cm.ContainerResources(pod, c, b.config.Resources)
}

func hasDevice(devices []*runtimeapi.Device, path string) bool {
	for _, d := range devices {
		if d.ContainerPath == path {
			return true
		}
	}
	return false
}

func sandboxLabels(pod *corev1.Pod) map[string]string {
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[container.PodNameLabel] = pod.Name
	labels[container.PodNamespaceLabel] = pod.Namespace
	labels[container.PodUIDLabel] = string(pod.UID)
	return labels
}

func containerLabels(pod *corev1.Pod, c *corev1.Container) map[string]string {
	return map[string]string{
		container.PodNameLabel:       pod.Name,
		container.PodNamespaceLabel:  pod.Namespace,
		container.PodUIDLabel:        string(pod.UID),
		container.ContainerNameLabel: c.Name,
	}
}

// containerAnnotations hold what is needed to stop the container in order when the Pod object is gone.
func containerAnnotations(pod *corev1.Pod, c *corev1.Container, attempt uint32,
	extra map[string]string) map[string]string {
	annotations := maps.Clone(extra)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[container.HashAnnotation] = strconv.FormatUint(HashContainer(c), 16)
	annotations[container.RestartCountAnnotation] = strconv.FormatUint(uint64(attempt), 10)
	annotations[container.TerminationMessagePathAnnotation] = c.TerminationMessagePath
	annotations[container.TerminationMessagePolicyAnnotation] = string(c.TerminationMessagePolicy)
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		annotations[container.DeletionGracePeriodAnnotation] = strconv.FormatInt(*grace, 10)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		annotations[container.TerminationGracePeriodAnnotation] = strconv.FormatInt(*grace, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		raw, _ := json.Marshal(c.Lifecycle.PreStop) // plain data: cannot fail
		annotations[container.PreStopAnnotation] = string(raw)
	}
	if len(c.Ports) > 0 {
		raw, _ := json.Marshal(c.Ports)
		annotations[container.PortsAnnotation] = string(raw)
	}
	return annotations
}
