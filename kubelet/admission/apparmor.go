package admission

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/status"
)

const (
	reasonAppArmor = "AppArmor"
	defaultSysFS   = "/sys"
)

// checkAppArmor rejects a Pod that has not started and names a profile that this machine cannot apply. sys is where sysfs
// is mounted. Where the kernel does not list its profiles, the runtime detects a missing one.
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
	loaded, err := loadedProfiles(sys)
	for _, profile := range profiles {
		if profile.Type != corev1.AppArmorProfileTypeLocalhost {
			continue
		}
		name := ""
		if profile.LocalhostProfile != nil {
			name = strings.TrimSpace(*profile.LocalhostProfile)
		}
		switch {
		case name == "":
			return reject(reasonAppArmor, "Cannot enforce AppArmor: a profile of type Localhost has no localhostProfile")
		case err == nil && !loaded[name]:
			return reject(reasonAppArmor, "Cannot enforce AppArmor: profile %q is not loaded: load it with apparmor_parser",
				name)
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

// loadedProfiles returns the names of the profiles that the kernel has loaded.
func loadedProfiles(sys string) (map[string]bool, error) {
	file, err := os.Open(filepath.Join(sys, "kernel/security/apparmor/profiles"))
	if err != nil {
		return nil, fmt.Errorf("read AppArmor's profiles: %w", err)
	}
	defer file.Close()
	loaded, lines := map[string]bool{}, bufio.NewScanner(file)
	for lines.Scan() {
		name, mode := lines.Text(), strings.LastIndex(lines.Text(), " (")
		if mode >= 0 { // the mode follows the name
			name = name[:mode]
		}
		loaded[name] = true
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read AppArmor's profiles: %w", err)
	}
	return loaded, nil
}
