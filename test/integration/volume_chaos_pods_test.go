//go:build integration

package integration

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision/local"
)

// retainedClaims are claims whose volumes are kept to the end, when the test reads what Pods have written to them.
var retainedClaims = []struct {
	name, class string
	block       bool
}{
	{"local-1", "keep-local", false}, {"local-2", "keep-local", false},
	{"disk-1", "keep-loop", false}, {"disk-2", "keep-loop", false}, {"block-1", "keep-loop", true},
}

// bytesPerPod is how many bytes of a block device each Pod writes.
const bytesPerPod = 512

// makeObjects creates what Pods refer to.
func (w *volumeChaos) makeObjects() {
	w.t.Helper()
	ctx := w.t.Context()
	for _, class := range []*storagev1.StorageClass{local.StorageClass(), csidriver.StorageClass()} {
		class.Name = strings.Replace(class.Name, "berth-", "keep-", 1)
		class.Annotations = nil
		class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimRetain)
		_, err := w.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		require.NoError(w.t, err)
	}
	for _, claim := range retainedClaims {
		object := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: claim.name}, Spec: claimSpec(claim.class, "24Mi"),
		}
		if claim.block {
			object.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}
		_, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, object, metav1.CreateOptions{})
		require.NoError(w.t, err)
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "blue"}}
	_, err := w.client.CoreV1().ConfigMaps("default").Create(ctx, settings, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func claimSpec(class, size string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceStorage: resource.MustParse(size)}},
	}
}

// podBuilder builds one Pod.
type podBuilder struct {
	*corev1.Pod
	main   *corev1.Container
	script strings.Builder
}

// add gives the Pod a volume, mounted at /NAME.
func (m *podBuilder) add(name, subPath string, source corev1.VolumeSource) {
	m.Spec.Volumes = append(m.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	m.main.VolumeMounts = append(m.main.VolumeMounts,
		corev1.VolumeMount{Name: name, MountPath: "/" + name, SubPath: subPath})
}

func newPodBuilder(name, acks string) *podBuilder {
	m := &podBuilder{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken: ptr.To(true), HostNetwork: true,
			Containers: []corev1.Container{{Name: "main", Image: shellImage, ImagePullPolicy: corev1.PullNever}},
		},
	}}
	m.main = &m.Spec.Containers[0]
	m.script.WriteString("set -e\n")
	m.add("acks", "", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: acks}})
	return m
}

// build returns the Pod, whose container runs the script.
func (m *podBuilder) build() *corev1.Pod {
	m.main.Command = []string{"/bin/busybox", "sh", "-c", m.script.String()}
	return m.Pod
}

// randomPod has a random set of volumes, and writes its name into each that it can write to.
func (w *volumeChaos) randomPod(name string) *corev1.Pod {
	m := newPodBuilder(name, w.acks)
	if w.chance(2) == 0 {
		m.add("scratch", "", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
		m.script.WriteString("echo x > /scratch/x\n")
	}
	if w.chance(3) == 0 {
		m.add("memory", "part", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi"))}})
		m.script.WriteString("echo x > /memory/x\n")
	}
	if w.chance(2) == 0 {
		m.add("settings", "", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}})
		m.script.WriteString("grep -q blue /settings/color\n")
	}
	if w.chance(8) == 0 {
		claim := &corev1.PersistentVolumeClaimTemplate{Spec: claimSpec([]string{"berth-loop", "berth-local"}[w.chance(2)], "16Mi")}
		m.add("own", "", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: claim}})
		m.script.WriteString("echo x > /own/x\n")
	}
	for _, claim := range retainedClaims {
		if w.chance(3) > 0 {
			continue
		}
		w.writtenClaims[name] = append(w.writtenClaims[name], claim.name)
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.name}}
		if claim.block {
			m.Spec.Volumes = append(m.Spec.Volumes, corev1.Volume{Name: claim.name, VolumeSource: source})
			m.main.VolumeDevices = []corev1.VolumeDevice{{Name: claim.name, DevicePath: "/dev/block-1"}}
			fmt.Fprintf(&m.script, "echo %s | dd of=/dev/block-1 bs=%d seek=%d conv=notrunc 2>/dev/null\n", name, bytesPerPod, w.pods)
			continue
		}
		part := []string{"", "a/b", "c"}[w.chance(3)]
		m.add(claim.name, part, source)
		fmt.Fprintf(&m.script, "echo %s >> /%s/written\n", name, claim.name)
	}
	fmt.Fprintf(&m.script, "touch /acks/%s\n", name)
	if w.chance(2) == 0 {
		m.script.WriteString("trap 'exit 0' TERM; while :; do sleep 0.2; done\n")
	}
	return m.build()
}

// requireAllWritten reads all retained volumes and checks that they have what Pods have written.
func (w *volumeChaos) requireAllWritten() {
	w.t.Helper()
	for _, claim := range retainedClaims {
		content := w.readVolume(claim.name, claim.block)
		for _, name := range w.acknowledgedPods() {
			for _, wrote := range w.writtenClaims[name] {
				if wrote == claim.name && !strings.Contains(content, "\n"+name+"\n") {
					w.t.Errorf("what Pod %s has written to %s is lost", name, claim.name)
				}
			}
		}
	}
}

// readVolume returns the content of a volume, line by line.
func (w *volumeChaos) readVolume(claim string, block bool) string {
	w.t.Helper()
	name := "read-" + claim
	m := newPodBuilder(name, w.acks)
	source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}
	if block {
		m.Spec.Volumes = append(m.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: source})
		m.main.VolumeDevices = []corev1.VolumeDevice{{Name: claim, DevicePath: "/dev/block-1"}}
		fmt.Fprintf(&m.script, "echo; dd if=/dev/block-1 bs=%d count=%d 2>/dev/null | tr -d '\\0'\n", bytesPerPod, w.pods+1)
	} else {
		m.add(claim, "", source)
		fmt.Fprintf(&m.script, "echo; cat /%[1]s/written /%[1]s/*/written /%[1]s/*/*/written 2>/dev/null || true\n", claim)
	}
	m.Labels = map[string]string{"name": name}
	_, err := w.client.CoreV1().Pods("default").Create(w.t.Context(), m.build(), metav1.CreateOptions{})
	require.NoError(w.t, err)
	pod := w.waitPod("name="+name, "finished", finished)
	log := w.mustRun("kubectl", "logs", name)
	require.Equal(w.t, corev1.PodSucceeded, pod.Status.Phase, log)
	w.mustRun("kubectl", "delete", "pod", name, "--timeout=2m")
	return log
}
