package securitycontext

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Effective returns the container's security context, with the Pod's value for each field that the container does not
// set. It is never nil and shares pointers with the specs: it must not be modified.
func Effective(pod *corev1.Pod, c *corev1.Container) *corev1.SecurityContext {
	effective := &corev1.SecurityContext{}
	if containerContext := c.SecurityContext; containerContext != nil {
		*effective = *containerContext
	}
	podContext := pod.Spec.SecurityContext
	if podContext == nil {
		return effective
	}
	if effective.SELinuxOptions == nil {
		effective.SELinuxOptions = podContext.SELinuxOptions
	}
	if effective.RunAsUser == nil {
		effective.RunAsUser = podContext.RunAsUser
	}
	if effective.RunAsGroup == nil {
		effective.RunAsGroup = podContext.RunAsGroup
	}
	if effective.RunAsNonRoot == nil {
		effective.RunAsNonRoot = podContext.RunAsNonRoot
	}
	if effective.SeccompProfile == nil {
		effective.SeccompProfile = podContext.SeccompProfile
	}
	if effective.AppArmorProfile == nil {
		effective.AppArmorProfile = podContext.AppArmorProfile
	}
	return effective
}

// ImageUser is the user that an image runs as.
type ImageUser struct {
	// UID is set if the image has a numeric user.
	UID *int64
	// Name is set if the image has a user name instead.
	Name string
}

// ImageUserOf returns the user of an image. An image without a user runs as root.
func ImageUserOf(image *runtimeapi.Image) ImageUser {
	switch {
	case image.GetUid() != nil:
		uid := image.GetUid().Value
		return ImageUser{UID: &uid}
	case image.GetUsername() != "":
		return ImageUser{Name: image.GetUsername()}
	default:
		return ImageUser{UID: new(int64)}
	}
}

// VerifyNonRoot returns an error if the container has runAsNonRoot and would run as root, or may do so.
func VerifyNonRoot(pod *corev1.Pod, c *corev1.Container, image ImageUser) error {
	effective := Effective(pod, c)
	if effective.RunAsNonRoot == nil || !*effective.RunAsNonRoot {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), c.Name)
	switch {
	case effective.RunAsUser != nil:
		if *effective.RunAsUser == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
	case image.UID != nil && *image.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case image.UID == nil && image.Name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s",
			image.Name, where)
	}
	return nil
}
