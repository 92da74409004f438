package claims

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/resources/delay"
)

const (
	// defaultHealthTimeout is how long the health holds that a driver reports for a device, unless the driver names another time.
	defaultHealthTimeout = 30 * time.Second
	// maxHealthTimeout is the longest such time that is applied: some drivers name one that stands for ever.
	maxHealthTimeout = 10 * 365 * 24 * time.Hour
	// healthRetryDelay is the time between two attempts to watch the health of a driver's devices.
	healthRetryDelay = 5 * time.Second
)

// deviceKey identifies a device of a driver.
type deviceKey struct{ pool, device string }

// health is what a driver has reported for a device.
type health struct {
	status  corev1.ResourceHealthStatus
	message string
	until   time.Time
}

// healthWatch is the health of the devices of one driver, as its newest socket reports it.
type healthWatch struct {
	cancel  context.CancelFunc
	devices map[deviceKey]health
	// expiry ends the validity of the health that holds the shortest.
	expiry *delay.Call
}

func (w *healthWatch) stop() {
	w.cancel()
	if w.expiry != nil {
		w.expiry.Stop()
	}
}

// watchHealth watches the health of a driver's devices at its newest socket, and no longer at another. The caller holds mu.
func (m *Manager) watchHealth(name string, d *driver) {
	if d.watch != nil {
		d.watch.stop()
		d.watch = nil
	}
	newest := d.newest()
	if newest == nil || m.running == nil || m.running.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.running)
	w := &healthWatch{cancel: cancel}
	d.watch = w
	client := healthapi.NewDRAResourceHealthClient(newest.conn)
	m.watches.Go(contain.Guard("claims.health", name, func() { m.runHealth(ctx, name, w, client) }))
}

// forgetHealth makes the health of a driver's devices unknown, until a socket that it has left reports it. The caller holds mu.
func (m *Manager) forgetHealth(name string, d *driver) {
	known := map[deviceKey]bool{}
	if d.watch != nil {
		for key := range d.watch.devices {
			known[key] = true
		}
	}
	m.watchHealth(name, d)
	for _, uid := range m.podsOf(name, known) {
		m.deps.OnHealthChanged(uid)
	}
}

// runHealth receives reports until ctx ends, or the driver says that it makes none.
func (m *Manager) runHealth(ctx context.Context, name string, w *healthWatch, client healthapi.DRAResourceHealthClient) {
	for {
		stream, err := client.NodeWatchResources(ctx, &healthapi.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var report *healthapi.NodeWatchResourcesResponse
			if report, err = stream.Recv(); err == nil {
				m.setHealth(ctx, name, w, report.Devices, false)
			}
		}
		if ctx.Err() != nil {
			return
		}
		m.setHealth(ctx, name, w, nil, true)
		if status.Code(err) == codes.Unimplemented {
			return
		}
		m.deps.Logger.Info("DRA driver does not report the health of its devices any more; trying again", "driver", name, "error", err)
		timer := m.deps.Clock.NewTimer(healthRetryDelay)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// setHealth records a report. A device that it lacks keeps its health until that expires, or loses it at once if the reports have ended.
func (m *Manager) setHealth(ctx context.Context, name string, w *healthWatch, reported []*healthapi.DeviceHealth, ended bool) {
	for _, uid := range m.replaceHealth(ctx, name, w, reported, ended) {
		m.deps.OnHealthChanged(uid)
	}
}

// replaceHealth records a report, and returns the Pods that have a device whose health has changed.
func (m *Manager) replaceHealth(ctx context.Context, name string, w *healthWatch, reported []*healthapi.DeviceHealth, ended bool) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	now, changed := m.deps.Clock.Now(), map[deviceKey]bool{}
	next := map[deviceKey]health{}
	for key, known := range w.devices {
		if !ended && known.until.After(now) {
			next[key] = known
		} else {
			changed[key] = true
		}
	}
	for _, d := range reported {
		key, h := deviceKey{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}, newHealth(d, now)
		before, known := w.devices[key]
		if !known || before.status != h.status || before.message != h.message {
			changed[key] = true
		}
		next[key] = h
	}
	w.devices = next
	m.scheduleExpiry(name, w)
	return m.podsOf(name, changed)
}

func newHealth(d *healthapi.DeviceHealth, now time.Time) health {
	timeout := defaultHealthTimeout
	if seconds := d.GetHealthCheckTimeoutSeconds(); seconds > 0 {
		timeout = time.Duration(min(seconds, int64(maxHealthTimeout/time.Second))) * time.Second
	}
	h := health{status: corev1.ResourceHealthStatusUnknown, message: d.GetMessage(), until: now.Add(timeout)}
	switch d.GetHealth() {
	case healthapi.HealthStatus_HEALTHY:
		h.status = corev1.ResourceHealthStatusHealthy
	case healthapi.HealthStatus_UNHEALTHY:
		h.status = corev1.ResourceHealthStatusUnhealthy
	}
	if most := corev1.ResourceHealthMessageMaxLength; len(h.message) > most {
		// Without the character at the cut, of which half would be sent as a longer replacement: the API server would refuse the status.
		h.message = strings.ToValidUTF8(h.message[:most-len("...")], "") + "..."
	}
	return h
}

// scheduleExpiry makes the first health that expires unknown when it does, if a Pod uses its device. The caller holds mu.
func (m *Manager) scheduleExpiry(name string, w *healthWatch) {
	if w.expiry != nil {
		w.expiry.Stop()
		w.expiry = nil
	}
	var first time.Time
	for key, h := range w.devices {
		if (first.IsZero() || h.until.Before(first)) && len(m.podsOf(name, map[deviceKey]bool{key: true})) > 0 {
			first = h.until
		}
	}
	if !first.IsZero() {
		w.expiry = delay.After(m.deps.Clock, first.Sub(m.deps.Clock.Now()), func() { m.expireHealth(name, w) })
	}
}

func (m *Manager) expireHealth(name string, w *healthWatch) {
	for _, uid := range m.forgetExpired(name, w) {
		m.deps.OnHealthChanged(uid)
	}
}

// forgetExpired makes the health unknown of devices that no report has named in time, and returns the Pods that have one.
func (m *Manager) forgetExpired(name string, w *healthWatch) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, expired := m.deps.Clock.Now(), map[deviceKey]bool{}
	for key, h := range w.devices {
		if !h.until.After(now) {
			expired[key] = true
			delete(w.devices, key)
		}
	}
	pods := m.podsOf(name, expired)
	m.scheduleExpiry(name, w)
	return pods
}

// podsOf returns the Pods that use one of a driver's devices. The caller holds mu.
func (m *Manager) podsOf(driver string, devices map[deviceKey]bool) []types.UID {
	seen := map[types.UID]bool{}
	var pods []types.UID
	for _, c := range m.claims {
		for _, d := range c.DriverState[driver].Devices {
			if !devices[deviceKey{d.PoolName, d.DeviceName}] {
				continue
			}
			for uid := range c.PodUIDs {
				if uid := types.UID(uid); !seen[uid] {
					seen[uid] = true
					pods = append(pods, uid)
				}
			}
		}
	}
	return pods
}

// healthOf returns the health of a device. The caller holds mu.
func (m *Manager) healthOf(driver string, d *device) health {
	unknown := health{status: corev1.ResourceHealthStatusUnknown}
	of := m.drivers[driver]
	if of == nil || of.watch == nil {
		return unknown
	}
	h, known := of.watch.devices[deviceKey{d.PoolName, d.DeviceName}]
	if !known || !h.until.After(m.deps.Clock.Now()) {
		return unknown
	}
	return h
}

// Status returns the health of the devices of a container's claims, for the status of its Pod.
func (m *Manager) Status(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, of := range c.Resources.Claims {
		held := m.heldClaim(pod, of.Name)
		if held == nil {
			continue
		}
		status := corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + of.Name)}
		if of.Request != "" {
			status.Name += corev1.ResourceName("/" + of.Request)
		}
		seen := map[corev1.ResourceID]bool{}
		for _, driver := range held.driverNames() {
			for _, d := range held.DriverState[driver].Devices {
				if !d.serves([]string{of.Request}) {
					continue
				}
				entry := m.healthEntry(driver, &d)
				if !seen[entry.ResourceID] {
					seen[entry.ResourceID] = true
					status.Resources = append(status.Resources, entry)
				}
			}
		}
		if len(status.Resources) > 0 {
			out = append(out, status)
		}
	}
	return out
}

// heldClaim returns the claim of an entry of the Pod's spec, if it is known on the node. The caller holds mu.
func (m *Manager) heldClaim(pod *corev1.Pod, entry string) *claim {
	for i := range pod.Spec.ResourceClaims {
		if pod.Spec.ResourceClaims[i].Name == entry {
			name, err := claimName(pod, &pod.Spec.ResourceClaims[i])
			if err == nil && name != "" {
				return m.claims[key{pod.Namespace, name}]
			}
		}
	}
	return nil
}

// healthEntry returns the health of a device as a Pod's status has it. The caller holds mu.
func (m *Manager) healthEntry(driver string, d *device) corev1.ResourceHealth {
	h := m.healthOf(driver, d)
	out := corev1.ResourceHealth{ResourceID: corev1.ResourceID(driver + "/" + d.PoolName + "/" + d.DeviceName), Health: h.status}
	if len(d.CDIDeviceIDs) > 0 {
		out.ResourceID = corev1.ResourceID(d.CDIDeviceIDs[0])
	}
	if h.message != "" {
		out.Message = &h.message
	}
	return out
}
