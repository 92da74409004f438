package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/internal/volumehealth"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// DefaultPeriod is the default of Config.Period.
	DefaultPeriod = 5 * time.Minute

	// eventComponent begins the source of the events.
	eventComponent = "volume health monitor"
)

// Problem is one thing that is wrong with a volume.
type Problem = volumehealth.Problem

// Driver calls a CSI driver. It is safe for concurrent use.
type Driver interface {
	// VolumeHealth returns what is wrong with the driver's volumes, by their handles. handles returns those of all volumes; it
	// is called only if the driver cannot list the abnormal ones. The error is errors.ErrUnsupported if the driver reports no
	// health.
	VolumeHealth(ctx context.Context, handles func() []string) (map[string][]Problem, error)
}

// Deps are what a Monitor works with. Client and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client lists PersistentVolumes and writes events.
	Client kubernetes.Interface
	Driver Driver
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
}

// Config is how a Monitor works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose volumes are checked.
	DriverName string
	// Period is the time between two checks. Default DefaultPeriod.
	Period time.Duration
}

// Monitor reports the health of one driver's volumes. Start runs it, once.
type Monitor struct {
	deps    Deps
	config  Config
	again   wakeup.Signal
	once    startonce.Guard
	running atomic.Bool
	// reported has what is wrong with volumes, by their handles, as it was reported last. Only Start uses it.
	reported map[string]string
}

// New returns a Monitor. It starts nothing.
func New(deps Deps, config Config) (*Monitor, error) {
	switch {
	case deps.Client == nil || deps.Driver == nil:
		return nil, errors.New("health: Deps.Client and Deps.Driver are required")
	case config.DriverName == "":
		return nil, errors.New("health: Config.DriverName is required")
	case config.Period < 0:
		return nil, fmt.Errorf("health: Config.Period %v is negative", config.Period)
	}
	if config.Period == 0 {
		config.Period = DefaultPeriod
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	deps.Logger = deps.Logger.With("driver", config.DriverName)
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Monitor{deps: deps, config: config, again: wakeup.NewSignal(), reported: map[string]string{}}, nil
}

// Start checks the volumes until ctx ends. While the driver reports no health, it waits for the next version of the driver.
func (m *Monitor) Start(ctx context.Context) error {
	if err := m.once.Begin(fmt.Sprintf("volume health monitor of driver %q", m.config.DriverName)); err != nil {
		return err
	}
	if m.deps.Recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: m.deps.Client.CoreV1(), Clock: m.deps.Clock, Logger: m.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: eventComponent + " " + m.config.DriverName})
		if err != nil {
			return fmt.Errorf("start volume health monitor of driver %q: %w", m.config.DriverName, err)
		}
		defer stop()
		m.deps.Recorder = recorder
	}
	m.running.Store(true)
	timer := m.deps.Clock.NewTimer(m.config.Period)
	defer timer.Stop()
	for {
		err := m.check(ctx)
		var next <-chan time.Time
		if !errors.Is(err, errors.ErrUnsupported) {
			timer.Reset(m.config.Period)
			next = timer.C()
			if err != nil && ctx.Err() == nil {
				m.deps.Logger.Warn("failed to check the health of volumes; checking again", "after", m.config.Period, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-m.again.C():
		}
	}
}

// RetryNow checks at once: the driver is back, and may be another version.
func (m *Monitor) RetryNow() { m.again.Notify() }

// Ready returns nil once the monitor works.
func (m *Monitor) Ready() error {
	if !m.running.Load() {
		return fmt.Errorf("volume health monitor of driver %q is not running", m.config.DriverName)
	}
	return nil
}

// Healthy returns nil: each check is bounded by the timeout of the calls of the driver.
func (m *Monitor) Healthy() error { return nil }

// check asks the driver and reports what has changed.
func (m *Monitor) check(ctx context.Context) error {
	var volumes map[string]*corev1.PersistentVolume
	var listErr error
	list := func() {
		if volumes == nil && listErr == nil {
			volumes, listErr = m.volumes(ctx)
		}
	}
	found, err := m.deps.Driver.VolumeHealth(ctx, func() []string {
		list()
		handles := make([]string, 0, len(volumes))
		for handle := range volumes {
			handles = append(handles, handle)
		}
		slices.Sort(handles)
		return handles
	})
	if err != nil {
		return err
	}
	now := map[string]string{}
	for handle, problems := range found {
		if text := volumehealth.Text(problems); text != "" {
			now[handle] = text
		}
	}
	if len(now) == 0 && len(m.reported) == 0 {
		return listErr
	}
	if list(); listErr != nil {
		return listErr
	}
	m.report(now, volumes)
	return nil
}

// report records events for the volumes whose problems have changed.
func (m *Monitor) report(now map[string]string, volumes map[string]*corev1.PersistentVolume) {
	for handle, text := range now {
		if volume := volumes[handle]; volume != nil && m.reported[handle] != text {
			m.deps.Logger.Warn("volume is abnormal", "volume", volume.Name, "problem", text)
			m.deps.Recorder.Eventf(claimOf(volume), corev1.EventTypeWarning, volumehealth.ReasonAbnormal, "Volume %s: %s", volume.Name, text)
			m.reported[handle] = text
		}
	}
	for handle := range m.reported {
		if now[handle] != "" {
			continue
		}
		delete(m.reported, handle)
		if volume := volumes[handle]; volume != nil {
			m.deps.Recorder.Eventf(claimOf(volume), corev1.EventTypeNormal, volumehealth.ReasonNormal, "Volume %s is normal again", volume.Name)
		}
	}
}

// volumes returns the driver's volumes that are bound, by their handles.
func (m *Monitor) volumes(ctx context.Context) (map[string]*corev1.PersistentVolume, error) {
	list, err := m.deps.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	volumes := map[string]*corev1.PersistentVolume{}
	for i := range list.Items {
		volume := &list.Items[i]
		if source := volume.Spec.CSI; source != nil && source.Driver == m.config.DriverName && volume.Spec.ClaimRef != nil {
			volumes[source.VolumeHandle] = volume
		}
	}
	return volumes, nil
}

// claimOf names the volume's claim.
func claimOf(volume *corev1.PersistentVolume) *corev1.ObjectReference {
	ref := volume.Spec.ClaimRef
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID,
	}
}
