package securitycontext

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Inputs is what the contexts depend on beside the specs.
type Inputs struct {
	// Image is the user of the container's image.
	Image ImageUser
	// Namespaces are those of the Pod.
	Namespaces *runtimeapi.NamespaceOption
	// ExtraGroups are group ids that the Pod's volumes ask for.
	ExtraGroups []int64
	// SeccompRoot is the directory of local seccomp profiles.
	SeccompRoot string
	// SeccompDefault gives containers that ask for no profile the runtime's instead of none.
	SeccompDefault bool
}

// Container words the container's security context. An error names the field that asks for what cannot be.
func Container(pod *corev1.Pod, c *corev1.Container, in Inputs) (*runtimeapi.LinuxContainerSecurityContext, error) {
	if err := VerifyNonRoot(pod, c, in.Image); err != nil {
		return nil, err
	}
	effective := Effective(pod, c)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: in.Namespaces,
		SelinuxOptions:   selinux(effective.SELinuxOptions),
		Privileged:       isTrue(effective.Privileged),
		ReadonlyRootfs:   isTrue(effective.ReadOnlyRootFilesystem),
		NoNewPrivs:       effective.AllowPrivilegeEscalation != nil && !*effective.AllowPrivilegeEscalation,
	}
	if effective.Capabilities != nil {
		sc.Capabilities = &runtimeapi.Capability{
			AddCapabilities:  capabilityNames(effective.Capabilities.Add),
			DropCapabilities: capabilityNames(effective.Capabilities.Drop),
		}
	}
	if effective.RunAsGroup != nil {
		sc.RunAsGroup = &runtimeapi.Int64Value{Value: *effective.RunAsGroup}
	}
	switch {
	case effective.RunAsUser != nil:
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *effective.RunAsUser}
	case in.Image.UID != nil:
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *in.Image.UID}
	default:
		sc.RunAsUsername = in.Image.Name
	}
	if effective.ProcMount == nil || *effective.ProcMount != corev1.UnmaskedProcMount {
		sc.MaskedPaths, sc.ReadonlyPaths = maskedPaths(), append([]string(nil), readonlyPaths...)
	}
	var err error
	if sc.Seccomp, err = seccomp(effective.SeccompProfile, in); err != nil {
		return nil, err
	}
	if sc.Apparmor, sc.ApparmorProfile, err = apparmor(effective.AppArmorProfile); err != nil {
		return nil, err
	}
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy, err = groups(pod, in.ExtraGroups)
	return sc, err
}

// Sandbox words the security context of the Pod's sandbox.
func Sandbox(pod *corev1.Pod, in Inputs) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: in.Namespaces,
		Privileged:       anyPrivileged(pod),
		// The sandbox's own process needs nothing, whatever the Pod's containers are allowed.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if podContext := pod.Spec.SecurityContext; podContext != nil {
		sc.SelinuxOptions = selinux(podContext.SELinuxOptions)
		if podContext.RunAsUser != nil {
			sc.RunAsUser = &runtimeapi.Int64Value{Value: *podContext.RunAsUser}
		}
		if podContext.RunAsGroup != nil {
			if podContext.RunAsUser == nil {
				// The runtime takes a group only together with a user; root is what it would take itself.
				sc.RunAsUser = &runtimeapi.Int64Value{}
			}
			sc.RunAsGroup = &runtimeapi.Int64Value{Value: *podContext.RunAsGroup}
		}
	}
	var err error
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy, err = groups(pod, in.ExtraGroups)
	return sc, err
}

// groups are the group ids that processes of the Pod get beside their own.
func groups(pod *corev1.Pod, extra []int64) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	podContext := pod.Spec.SecurityContext
	if podContext == nil {
		return append([]int64(nil), extra...), runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	var ids []int64
	if podContext.FSGroup != nil {
		ids = append(ids, *podContext.FSGroup)
	}
	ids = append(append(ids, podContext.SupplementalGroups...), extra...)
	if podContext.SupplementalGroupsPolicy == nil {
		return ids, runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	policy, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*podContext.SupplementalGroupsPolicy)]
	if !ok {
		return nil, 0, fmt.Errorf("read spec.securityContext.supplementalGroupsPolicy %q: neither Merge nor Strict",
			*podContext.SupplementalGroupsPolicy)
	}
	return ids, runtimeapi.SupplementalGroupsPolicy(policy), nil
}

func seccomp(profile *corev1.SeccompProfile, in Inputs) (*runtimeapi.SecurityProfile, error) {
	kind := runtimeapi.SecurityProfile_Unconfined
	switch {
	case profile == nil:
		if in.SeccompDefault {
			kind = runtimeapi.SecurityProfile_RuntimeDefault
		}
	case profile.Type == corev1.SeccompProfileTypeRuntimeDefault:
		kind = runtimeapi.SecurityProfile_RuntimeDefault
	case profile.Type == corev1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || !filepath.IsLocal(*profile.LocalhostProfile) {
			return nil, fmt.Errorf("read securityContext.seccompProfile: localhostProfile has to be a path below %q",
				in.SeccompRoot)
		}
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(in.SeccompRoot, *profile.LocalhostProfile),
		}, nil
	case profile.Type != corev1.SeccompProfileTypeUnconfined:
		return nil, fmt.Errorf("read securityContext.seccompProfile.type %q: not a profile type", profile.Type)
	}
	return &runtimeapi.SecurityProfile{ProfileType: kind}, nil
}

// apparmor words the profile both ways that runtimes know: as a message, and as the older string.
func apparmor(profile *corev1.AppArmorProfile) (*runtimeapi.SecurityProfile, string, error) {
	if profile == nil {
		return nil, "", nil
	}
	switch profile.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, "runtime/default", nil
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, "unconfined", nil
	case corev1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			return nil, "", fmt.Errorf("read securityContext.appArmorProfile: localhostProfile is missing")
		}
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: *profile.LocalhostProfile,
		}, "localhost/" + *profile.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("read securityContext.appArmorProfile.type %q: not a profile type", profile.Type)
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// anyPrivileged says whether any container of the Pod is privileged; then its sandbox has to be.
func anyPrivileged(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if sc := pod.Spec.EphemeralContainers[i].SecurityContext; sc != nil && isTrue(sc.Privileged) {
			return true
		}
	}
	return false
}

func capabilityNames(capabilities []corev1.Capability) []string {
	list := make([]string, len(capabilities))
	for i, c := range capabilities {
		list[i] = string(c)
	}
	return list
}

func isTrue(b *bool) bool { return b != nil && *b }
