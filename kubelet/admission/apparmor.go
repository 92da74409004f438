package admission

import (
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/status"
)

const (
	reasonAppArmor = "AppArmor"
	defaultSysFS   = "/sys"
)

// checkAppArmor rejects a Pod that has not started and names a profile that this machine cannot apply. sys is where sysfs
// is mounted. Whether a profile is loaded is for the runtime to say each time it creates the container: another Pod of the
// node may load it later.
func checkAppArmor(pod *corev1.Pod, sys string) *status.Failure {
	if pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "" {
		return nil
	}
	profiles := appArmorProfiles(pod)
	if len(profiles) == 0 {
		return nil
	}
	enabled, err := os.ReadFile(filepath.Join(sys, "module/apparmor/parameters/enabled"))
	if err != nil || !strings.HasPrefix(string(enabled), "Y") {
		return reject(reasonAppArmor, "Cannot enforce AppArmor: AppArmor is not enabled on the host")
	}
	for _, profile := range profiles {
		if profile.Type == corev1.AppArmorProfileTypeLocalhost && strings.TrimSpace(ptr.Deref(profile.LocalhostProfile, "")) == "" {
			return reject(reasonAppArmor, "Cannot enforce AppArmor: a profile of type Localhost has no localhostProfile")
		}
	}
	return nil
}

// appArmorProfiles returns the profiles that the Pod and its containers name, without Unconfined.
func appArmorProfiles(pod *corev1.Pod) (named []*corev1.AppArmorProfile) {
	add := func(profile *corev1.AppArmorProfile) {
		if profile != nil && profile.Type != corev1.AppArmorProfileTypeUnconfined {
			named = append(named, profile)
		}
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		add(sc.AppArmorProfile)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil {
				add(sc.AppArmorProfile)
			}
		}
	}
	return named
}
