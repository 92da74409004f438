package volumemanager

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/volumehealth"
	"github.com/berth-dev/berth/volume"
)

// healthInterval is how often the health of volumes is read whose drivers report it: CSI has no event for it.
const healthInterval = 5 * time.Minute

// reportsHealth reports whether the health of the volume is to be read periodically.
func reportsHealth(mounted *mountedVolume) bool {
	reporter, ok := mounted.plugin.(volume.HealthReporter)
	return ok && reporter.ReportsHealth(mounted.Spec)
}

// healthLoop reads the health of volumes when they have been set up, and then periodically, until ctx ends. It has no timer while
// no driver reports any.
func (m *Manager) healthLoop(ctx context.Context) {
	var timer clock.Timer // nil before the first such volume
	var next <-chan time.Time
	for {
		var pods map[types.UID]struct{} // nil: all
		select {
		case <-ctx.Done():
			if timer != nil {
				timer.Stop()
			}
			return
		case <-m.toCheck.added.C():
			pods = m.take(&m.toCheck)
		case <-next:
			next = nil
		}
		if !m.checkHealth(ctx, pods) {
			continue
		}
		if timer == nil {
			timer = m.clock.NewTimer(healthInterval)
		} else if next == nil {
			timer.Reset(healthInterval)
		}
		next = timer.C()
	}
}

// checkedVolume is a volume whose health is read.
type checkedVolume struct {
	pod     *corev1.Pod
	name    string
	mounted *mountedVolume
}

// checkHealth reads the health of the volumes of the Pods, of all if pods is nil, and records an event of each whose health has
// changed. It returns false if there were no such volumes.
func (m *Manager) checkHealth(ctx context.Context, pods map[types.UID]struct{}) bool {
	var volumes []checkedVolume
	m.mu.Lock()
	for uid, state := range m.pods {
		if _, wanted := pods[uid]; pods != nil && !wanted {
			continue
		}
		for name, mounted := range state.mounted {
			volumes = append(volumes, checkedVolume{pod: state.pod, name: name, mounted: mounted})
		}
	}
	m.mu.Unlock()
	checked := false
	for _, v := range volumes {
		if !reportsHealth(v.mounted) {
			continue
		}
		checked = true
		m.checkVolume(ctx, v)
	}
	return checked
}

func (m *Manager) checkVolume(ctx context.Context, v checkedVolume) {
	problems, err := v.mounted.plugin.(volume.HealthReporter).Health(ctx, v.mounted.Spec, v.mounted.Path)
	if err != nil {
		if ctx.Err() == nil {
			m.logger.Warn("failed to read the health of a volume; reading it again", "pod", v.pod.Name, "namespace", v.pod.Namespace,
				"volume", v.name, "after", healthInterval, "error", err)
		}
		return
	}
	text := volumehealth.Text(problems)
	before := v.mounted.health.Swap(&text)
	switch {
	case text != "" && (before == nil || *before != text):
		m.deps.Recorder.Eventf(v.pod, corev1.EventTypeWarning, volumehealth.ReasonAbnormal, "Volume %s: %s", v.name, text)
	case text == "" && before != nil && *before != "":
		m.deps.Recorder.Eventf(v.pod, corev1.EventTypeNormal, volumehealth.ReasonNormal, "Volume %s is normal again", v.name)
	}
}

// claimHealth returns 1 for each claim whose volume is abnormal, and 0 for each whose volume is not, as it was read last.
func (m *Manager) claimHealth() map[claimKey]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[claimKey]float64{}
	for _, state := range m.pods {
		for _, mounted := range state.mounted {
			text := mounted.health.Load()
			if claim := mounted.Spec.PVC; claim != nil && text != nil {
				abnormal := 0.0
				if *text != "" {
					abnormal = 1
				}
				all[claimKey{claim.Namespace, claim.Name}] = abnormal
			}
		}
	}
	return all
}
