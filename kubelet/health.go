package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// patience is how long a part may take to answer before it counts as hanging. A busy machine takes some seconds.
const patience = 30 * time.Second

// checks are what /healthz asks beside whether anybody answers. Where upstream has a loop that may be stale, there are
// workers here; a check asks for what all changes of Pods pass, and for the log.
func (k *Kubelet) checks() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		&answers{name: "log", clock: k.deps.Clock, ask: klog.Flush},
		&answers{name: "syncloop", clock: k.deps.Clock, ask: func() { k.workers.Pods() }},
	}
}

// Healthy returns what hangs, or nil. It is what /healthz says.
func (k *Kubelet) Healthy(ctx context.Context) error {
	for _, check := range k.health {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz", http.NoBody)
		if err != nil {
			return err
		}
		if err := check.Check(request); err != nil {
			return fmt.Errorf("health check %s: %w", check.Name(), err)
		}
	}
	return nil
}

// Serving is closed as soon as the server listens; without a server it is from the start.
func (k *Kubelet) Serving() <-chan struct{} {
	if k.server != nil {
		return k.server.Ready()
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// answers is the check that a part answers at all. However many ask, the part is asked once at a time.
type answers struct {
	name  string
	clock clock.Clock
	ask   func()

	mu    sync.Mutex    // guards below
	asked chan struct{} // nil while nobody asks; closed with the answer
	since time.Time
}

var _ healthz.HealthChecker = (*answers)(nil)

// Name implements healthz.HealthChecker.
func (a *answers) Name() string { return a.name }

// Check implements healthz.HealthChecker. It waits for the answer, but neither longer than patience nor than the request.
func (a *answers) Check(r *http.Request) error {
	answered, since := a.begin()
	if left := since.Add(patience).Sub(a.clock.Now()); left > 0 {
		timer := a.clock.NewTimer(left)
		defer timer.Stop()
		select {
		case <-answered:
			return nil
		case <-timer.C():
		case <-r.Context().Done():
		}
	}
	select {
	case <-answered: // whatever else is true
		return nil
	default:
		return fmt.Errorf("no answer since %v", since.Format(time.RFC3339))
	}
}

// begin asks, unless that goes on already.
func (a *answers) begin() (answered <-chan struct{}, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked == nil {
		asked := make(chan struct{})
		a.asked, a.since = asked, a.clock.Now()
		go func() { // it ends when the part answers; one that never does is why this process has to be restarted
			a.ask()
			a.mu.Lock()
			defer a.mu.Unlock()
			a.asked = nil
			close(asked)
		}()
	}
	return a.asked, a.since
}
