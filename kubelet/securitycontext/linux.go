package securitycontext

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
)

// Inputs are what the contexts depend on besides the specs.
type Inputs struct {
	// Image is the user of the container's image.
	Image ImageUser
	// Namespaces are the Pod's namespaces.
	Namespaces *runtimeapi.NamespaceOption
	// ExtraGroups are the group ids that the Pod's volumes require.
	ExtraGroups []int64
	// SeccompRoot is the directory of local seccomp profiles.
	SeccompRoot string
	// SeccompDefault gives containers without a profile the runtime's default profile instead of none.
	SeccompDefault bool
}

// Container returns the container's CRI security context. An error names the invalid field.
func Container(pod *corev1.Pod, c *corev1.Container, in Inputs) (*runtimeapi.LinuxContainerSecurityContext, error) {
	if err := VerifyNonRoot(pod, c, in.Image); err != nil {
		return nil, err
	}
	effective := Effective(pod, c)
	sc := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: in.Namespaces,
		SelinuxOptions:   selinux(effective.SELinuxOptions),
		Privileged:       ptr.Deref(effective.Privileged, false),
		ReadonlyRootfs:   ptr.Deref(effective.ReadOnlyRootFilesystem, false),
		NoNewPrivs:       !ptr.Deref(effective.AllowPrivilegeEscalation, true),
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

// Sandbox returns the CRI security context of the Pod's sandbox.
func Sandbox(pod *corev1.Pod, in Inputs) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: in.Namespaces,
		Privileged:       anyPrivileged(pod),
		// The sandbox's own process needs no more, whatever the Pod's containers may do.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if podContext := pod.Spec.SecurityContext; podContext != nil {
		sc.SelinuxOptions = selinux(podContext.SELinuxOptions)
		if podContext.RunAsUser != nil {
			sc.RunAsUser = &runtimeapi.Int64Value{Value: *podContext.RunAsUser}
		}
		if podContext.RunAsGroup != nil {
			if podContext.RunAsUser == nil {
				// The runtime accepts a group only together with a user; root is its own default.
				sc.RunAsUser = &runtimeapi.Int64Value{}
			}
			sc.RunAsGroup = &runtimeapi.Int64Value{Value: *podContext.RunAsGroup}
		}
	}
	var err error
	sc.SupplementalGroups, sc.SupplementalGroupsPolicy, err = groups(pod, in.ExtraGroups)
	return sc, err
}

// groups returns the supplemental group ids of the Pod's processes.
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
			return nil, fmt.Errorf("read securityContext.seccompProfile: localhostProfile must be a path below %q",
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

// apparmor returns the profile in both forms that runtimes accept: the message and the older string.
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

// anyPrivileged reports whether a container of the Pod is privileged; then the sandbox must be as well.
func anyPrivileged(pod *corev1.Pod) bool {
	for c := range podutil.Containers(&pod.Spec) {
		if sc := c.SecurityContext; sc != nil && ptr.Deref(sc.Privileged, false) {
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
