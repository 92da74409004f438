package admission

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestAppArmor(t *testing.T) {
	const localhost = corev1.AppArmorProfileTypeLocalhost
	profile := func(kind corev1.AppArmorProfileType, name string) *corev1.Pod {
		return testPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
				AppArmorProfile: &corev1.AppArmorProfile{Type: kind, LocalhostProfile: &name},
			}
		})
	}
	write := func(path, content string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	sys := t.TempDir()
	require.Nil(t, checkAppArmor(testPod(), sys))
	require.Nil(t, checkAppArmor(profile(corev1.AppArmorProfileTypeUnconfined, ""), sys))
	failure := checkAppArmor(profile(corev1.AppArmorProfileTypeRuntimeDefault, ""), sys)
	require.Equal(t, "AppArmor", failure.Reason)
	require.Equal(t, "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host", failure.Message)
	begun := profile(corev1.AppArmorProfileTypeRuntimeDefault, "")
	begun.Status.Phase = corev1.PodRunning
	require.Nil(t, checkAppArmor(begun, sys), "it has passed once")

	write(filepath.Join(sys, "module/apparmor/parameters/enabled"), "Y\n")
	require.Nil(t, checkAppArmor(profile(corev1.AppArmorProfileTypeRuntimeDefault, ""), sys))
	require.Contains(t, checkAppArmor(profile(localhost, " "), sys).Message, "no localhostProfile")
	write(filepath.Join(sys, "kernel/security/apparmor/profiles"), "/usr/bin/man (enforce)\n")
	require.Nil(t, checkAppArmor(profile(localhost, "web"), sys), "a profile may be loaded later")
	whole := testPod(func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: localhost}}
	})
	require.NotNil(t, checkAppArmor(whole, sys), "a Pod's own")
}
