package config

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

// safeUID is a valid UID: it becomes the name of a directory and of a cgroup. In that, with systemd, "_" stands for "-", so that a UID with
// one would be taken for another; and it separates the UID in the name of the directory of logs.
var safeUID = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,62}$`)

// validate checks what the API server checks, as far as a wrong value could harm the node or other Pods, and rejects
// what only works with an API server.
func validate(pod *corev1.Pod) error {
	if err := bad("metadata.name", pod.Name, validation.IsDNS1123Subdomain(pod.Name)); err != nil {
		return err
	}
	if err := bad("metadata.namespace", pod.Namespace, validation.IsDNS1123Label(pod.Namespace)); err != nil {
		return err
	}
	if !safeUID.MatchString(string(pod.UID)) {
		return fmt.Errorf("metadata.uid %q: want at most 63 letters, digits and -", pod.UID)
	}
	for key, value := range pod.Labels {
		problems := append(content.IsLabelKey(key), validation.IsValidLabelValue(value)...)
		if err := bad("metadata.labels", key, problems); err != nil {
			return err
		}
	}
	spec := &pod.Spec
	policies := []corev1.RestartPolicy{
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever,
	}
	switch {
	case len(spec.Containers) == 0:
		return errors.New("spec.containers: a pod needs a container")
	case len(spec.EphemeralContainers) > 0:
		return errors.New("spec.ephemeralContainers: only the API server adds these")
	case !slices.Contains(policies, spec.RestartPolicy):
		return fmt.Errorf("spec.restartPolicy %q: want Always, OnFailure or Never", spec.RestartPolicy)
	case spec.ActiveDeadlineSeconds != nil && (*spec.ActiveDeadlineSeconds < 1 || *spec.ActiveDeadlineSeconds > math.MaxInt32):
		return fmt.Errorf("spec.activeDeadlineSeconds: want 1 to %d", math.MaxInt32)
	}
	if err := references(spec); err != nil {
		return err
	}
	volumes, err := validateVolumes(spec)
	if err != nil {
		return err
	}
	return validateContainers(spec, volumes)
}

func bad(field, value string, problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s %.80q: %s", field, value, problems[0])
}

func validateVolumes(spec *corev1.PodSpec) (sets.Set[string], error) {
	names := sets.New[string]()
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		field := fmt.Sprintf("spec.volumes[%d]", i)
		if err := bad(field+".name", v.Name, validation.IsDNS1123Label(v.Name)); err != nil {
			return nil, err
		}
		if names.Has(v.Name) {
			return nil, fmt.Errorf("%s.name %q: another volume has this name", field, v.Name)
		}
		names.Insert(v.Name)
		if v.HostPath != nil && (v.HostPath.Path == "" || slices.Contains(strings.Split(v.HostPath.Path, "/"), "..")) {
			return nil, fmt.Errorf("%s.hostPath.path %q: want a path without ..", field, v.HostPath.Path)
		}
		if source, err := apiSource(v); err != nil {
			return nil, fmt.Errorf("%s.%s: %w", field, source, err)
		}
	}
	return names, nil
}

func validateContainers(spec *corev1.PodSpec, volumes sets.Set[string]) error {
	names := sets.New[string]()
	check := func(list string, containers []corev1.Container) error {
		for i := range containers {
			c, field := &containers[i], fmt.Sprintf("spec.%s[%d]", list, i)
			if names.Has(c.Name) {
				return fmt.Errorf("%s.name %q: another container has this name", field, c.Name)
			}
			names.Insert(c.Name)
			if err := validateContainer(field, c, volumes); err != nil {
				return err
			}
		}
		return nil
	}
	if err := check("initContainers", spec.InitContainers); err != nil {
		return err
	}
	return check("containers", spec.Containers)
}

func validateContainer(field string, c *corev1.Container, volumes sets.Set[string]) error {
	if err := bad(field+".name", c.Name, validation.IsDNS1123Label(c.Name)); err != nil {
		return err
	}
	switch c.ImagePullPolicy {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return fmt.Errorf("%s.imagePullPolicy %q: want Always, IfNotPresent or Never", field, c.ImagePullPolicy)
	}
	if c.Image == "" || strings.TrimSpace(c.Image) != c.Image {
		return fmt.Errorf("%s.image %q: want an image's name", field, c.Image)
	}
	for i, p := range c.Ports {
		at := fmt.Sprintf("%s.ports[%d]", field, i)
		if p.ContainerPort < 1 || p.ContainerPort > 65535 || p.HostPort < 0 || p.HostPort > 65535 {
			return fmt.Errorf("%s: containerPort %d, hostPort %d: want 1 to 65535", at, p.ContainerPort, p.HostPort)
		}
		switch p.Protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			return fmt.Errorf("%s.protocol %q: want TCP, UDP or SCTP", at, p.Protocol)
		}
	}
	for i := range c.VolumeMounts {
		if err := validateMount(fmt.Sprintf("%s.volumeMounts[%d]", field, i), &c.VolumeMounts[i], volumes); err != nil {
			return err
		}
	}
	for name, limit := range c.Resources.Limits {
		request := c.Resources.Requests[name]
		if limit.Sign() < 0 || request.Sign() < 0 || request.Cmp(limit) > 0 {
			return fmt.Errorf("%s.resources: request %s of %s is negative or above the limit %s", field, &request, name, &limit)
		}
	}
	for name, request := range c.Resources.Requests {
		if request.Sign() < 0 {
			return fmt.Errorf("%s.resources.requests: %s is negative", field, name)
		}
	}
	return validateProbes(field, c)
}

func validateMount(field string, m *corev1.VolumeMount, volumes sets.Set[string]) error {
	switch {
	case !volumes.Has(m.Name):
		return fmt.Errorf("%s.name %q: no volume has this name", field, m.Name)
	case m.MountPath == "":
		return fmt.Errorf("%s.mountPath: is empty", field)
	case path.IsAbs(m.SubPath) || slices.Contains(strings.Split(m.SubPath, "/"), ".."):
		return fmt.Errorf("%s.subPath %q: want a relative path without ..", field, m.SubPath)
	}
	return nil
}

func validateProbes(field string, c *corev1.Container) error {
	for name, p := range map[string]*corev1.Probe{
		"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe, "startupProbe": c.StartupProbe,
	} {
		if p == nil {
			continue
		}
		if min(p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold) < 1 || p.InitialDelaySeconds < 0 {
			return fmt.Errorf("%s.%s: its seconds and thresholds must not be negative", field, name)
		}
		handlers := 0
		for _, set := range []bool{p.Exec != nil, p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil} {
			if set {
				handlers++
			}
		}
		if handlers != 1 {
			return fmt.Errorf("%s.%s: want one of exec, httpGet, tcpSocket and grpc", field, name)
		}
	}
	return nil
}
