package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/selinux"
)

// seLinux computes the labels that volumes are mounted with, so that the container runtime need not label each of their files
// (KEP-1710).
type seLinux struct {
	labels selinux.Labels
	// allModes mounts volumes of any access mode with their label, and not only ReadWriteOncePod ones.
	allModes bool
	metrics  seLinuxMetrics
}

// seLinuxMetrics count what prevents such mounts: as errors where volumes are mounted with a label, and as warnings where
// allModes would do so.
type seLinuxMetrics struct {
	containerErrors, containerWarnings *prometheus.GaugeVec // by access mode
	podErrors, podWarnings             *prometheus.GaugeVec // by access mode
	volumeErrors, volumeWarnings       *prometheus.GaugeVec // by plugin and access mode
	admitted                           *prometheus.GaugeVec // by plugin and access mode
}

func newSELinux(labels selinux.Labels, allModes bool) *seLinux {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "volume_manager_selinux_" + name + "_total", Help: help}, labels)
	}
	const mode, plugin = "access_mode", "volume_plugin"
	return &seLinux{labels: labels, allModes: allModes, metrics: seLinuxMetrics{
		containerErrors:   gauge("container_errors", "Number of SELinux contexts of containers that could not be computed.", mode),
		containerWarnings: gauge("container_warnings", "Number of such contexts where the volume is not mounted with one.", mode),
		podErrors: gauge("pod_context_mismatch_errors",
			"Number of volumes whose Pod's containers have different SELinux contexts.", mode),
		podWarnings: gauge("pod_context_mismatch_warnings", "Number of such volumes that are not mounted with a context.", mode),
		volumeErrors: gauge("volume_context_mismatch_errors",
			"Number of volumes that are mounted with another SELinux context for another Pod.", plugin, mode),
		volumeWarnings: gauge("volume_context_mismatch_warnings",
			"Number of such volumes that are not mounted with a context.", plugin, mode),
		admitted: gauge("volumes_admitted", "Number of volumes that have one SELinux context.", plugin, mode),
	}}
}

// collectors returns the metrics of SELinux labels.
func (s *seLinux) collectors() []prometheus.Collector {
	c := &s.metrics
	return []prometheus.Collector{
		c.containerErrors, c.containerWarnings, c.podErrors, c.podWarnings, c.volumeErrors, c.volumeWarnings, c.admitted,
	}
}

// SELinuxEnabled reports whether the machine uses SELinux.
func (m *Manager) SELinuxEnabled() bool { return m.seLinux.labels.Enabled() }

// labelOf returns the label of a volume: what it is mounted with, and what it would be mounted with if allModes were set.
func (s *seLinux) labelOf(ctx context.Context, pod *corev1.Pod, plugin volume.Plugin, spec volume.Spec) (devices.Label, error) {
	mounter, ok := plugin.(volume.SELinuxMounter)
	if !s.labels.Enabled() || spec.IsBlock() {
		return devices.Label{}, nil
	}
	supported := false
	if ok {
		var err error
		if supported, err = mounter.SupportsSELinuxMount(ctx, spec); err != nil {
			return devices.Label{}, err
		}
	}
	mode := accessModes(spec)
	var labels []string
	for _, options := range seLinuxOptions(pod, spec.Name) {
		label, err := s.labels.FileLabel(options)
		if err != nil {
			return devices.Label{}, s.report(err, spec, s.metrics.containerErrors, s.metrics.containerWarnings, mode)
		}
		if !slices.Contains(labels, label) {
			labels = append(labels, label)
		}
	}
	if len(labels) > 1 {
		err := fmt.Errorf("containers that use volume %q have different SELinux labels: %q", spec.Name, labels)
		return devices.Label{}, s.report(err, spec, s.metrics.podErrors, s.metrics.podWarnings, mode)
	}
	label := devices.Label{Supported: supported}
	if len(labels) == 0 || !supported || isRecursive(pod) {
		return label, nil
	}
	label.Wanted = labels[0]
	if s.mounts(spec) {
		label.Mounted = label.Wanted
	}
	return label, nil
}

// mounts reports whether volumes with the access modes of this one are mounted with a label.
func (s *seLinux) mounts(spec volume.Spec) bool {
	return spec.PV != nil && (s.allModes || len(spec.PV.Spec.AccessModes) == 1 && isExclusive(spec))
}

// report counts what prevents a mount with a label. It returns the error if the volume would be mounted so.
func (s *seLinux) report(err error, spec volume.Spec, errs, warnings *prometheus.GaugeVec, values ...string) error {
	if s.mounts(spec) {
		errs.WithLabelValues(values...).Inc()
		return err
	}
	warnings.WithLabelValues(values...).Inc()
	return nil
}

// acquire acquires the volume's device with the label. A device that another Pod uses with another label is an error.
func (m *Manager) acquire(plugin volume.Attachable, device volume.Device, by devices.VolumeRef, spec volume.Spec, label devices.Label,
) error {
	err := m.devices.Acquire(plugin, device, by, isExclusive(spec), label)
	var conflict *devices.LabelConflictError
	if !errors.As(err, &conflict) {
		return err
	}
	c := &m.seLinux.metrics
	err = m.seLinux.report(err, spec, c.volumeErrors, c.volumeWarnings, spec.QualifiedPluginName(plugin.Name()), accessModes(spec))
	if err != nil {
		return err
	}
	return m.devices.Acquire(plugin, device, by, isExclusive(spec), devices.Label{})
}

// admitted counts a volume that was mounted by a plugin that supports labels.
func (s *seLinux) admitted(plugin volume.Plugin, spec volume.Spec, label devices.Label) {
	if label.Wanted != "" {
		s.metrics.admitted.WithLabelValues(spec.QualifiedPluginName(plugin.Name()), accessModes(spec)).Inc()
	}
}

// needsRelabel reports whether the container runtime has to label the files of a volume: the plugin leaves that to it, the
// volume is not mounted with a label, and its file system has labels.
func (m *Manager) needsRelabel(request volume.Request, mount volume.Mount) (bool, error) {
	if !mount.SELinuxRelabel || request.SELinuxLabel != "" || !m.seLinux.labels.Enabled() {
		return false, nil
	}
	return mounts.HasSecurityLabels(mount.Path)
}

// seLinuxOptions returns the SELinux options of the containers that mount a volume.
func seLinuxOptions(pod *corev1.Pod, name string) []*corev1.SELinuxOptions {
	var all []*corev1.SELinuxOptions
	for container := range podutil.Containers(&pod.Spec) {
		if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name }) {
			continue
		}
		var options *corev1.SELinuxOptions
		if pod.Spec.SecurityContext != nil {
			options = pod.Spec.SecurityContext.SELinuxOptions
		}
		if container.SecurityContext != nil && container.SecurityContext.SELinuxOptions != nil {
			options = container.SecurityContext.SELinuxOptions
		}
		if options != nil {
			all = append(all, options)
		}
	}
	return all
}

// isRecursive reports whether the Pod has its volumes labelled by the container runtime, file by file.
func isRecursive(pod *corev1.Pod) bool {
	security := pod.Spec.SecurityContext
	return security != nil && security.SELinuxChangePolicy != nil && *security.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive
}

// accessModes returns the access mode of a volume for metrics: the widest one, as Kubernetes' kubelet has it.
func accessModes(spec volume.Spec) string {
	if spec.PV == nil {
		return "inline"
	}
	for _, mode := range []struct {
		mode corev1.PersistentVolumeAccessMode
		name string
	}{
		{corev1.ReadWriteMany, "RWX"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteOnce, "RWO"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(spec.PV.Spec.AccessModes, mode.mode) {
			return mode.name
		}
	}
	return ""
}
