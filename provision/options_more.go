package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

// The options in this file are not part of the interface's first version.

// AddFinalizer determines whether PersistentVolumes of policy Delete get the finalizer
// external-provisioner.volume.kubernetes.io/finalizer, which keeps a volume that is deleted before its
// claim from leaving its storage behind. It is taken off when the policy becomes Retain or Recycle, and
// from all of the controller's volumes if the option is false. Defaults to true.
func AddFinalizer(addFinalizer bool) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.addFinalizer = addFinalizer
		return nil
	})
}

// ClaimIntent determines whether a finalizer is put on a claim before the first call for it, and taken off
// once the outcome is saved. Without it, a crash between the call and the save leaks the volume if the
// claim is deleted meanwhile; with it, the controller needs the right to patch persistentvolumeclaims.
// Defaults to true.
func ClaimIntent(claimIntent bool) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.claimIntent = claimIntent
		return nil
	})
}

// IntentFinalizer names the finalizer of ClaimIntent. Controllers that serve one provisioner name at the
// same time without leader election (one per node, say) should have one each. Defaults to a name derived
// from the provisioner's.
func IntentFinalizer(name string) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if name == "" {
			return errors.New("option IntentFinalizer: empty")
		}
		s.intentFinalizer = name
		return nil
	})
}

// ClientLimit keeps the rate limit of the client given to New (client-go's default is 5 requests a second). Defaults
// to false: the controller uses that client's connections and identity without its limit.
func ClientLimit(clientLimit bool) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.clientLimit = clientLimit
		return nil
	})
}

// InfeasibleRetryInterval is how long a claim that failed with an InfeasibleError waits, at least, before it is tried again
// unchanged. Defaults to 5 minutes; 0 leaves it to the rate limiter, as after any other error.
func InfeasibleRetryInterval(interval time.Duration) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if interval < 0 {
			return fmt.Errorf("option InfeasibleRetryInterval: %v is negative", interval)
		}
		s.infeasibleInterval = interval
		return nil
	})
}

// LeaseClient is the client that renews the Lease. Defaults to one over the same connections as the
// controller's client but without its rate limit, so that a busy controller does not lose its lease.
func LeaseClient(client kubernetes.Interface) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if client == nil {
			return errors.New("option LeaseClient: nil")
		}
		s.leaseClient = client
		return nil
	})
}

// WithRunnable runs something beside the controller for as long as it works: without leader election always, with it
// only in the process that leads. It gets a context that ends with the work, and must return soon after; an error ends
// the controller with it. It may be given several times.
func WithRunnable(run func(context.Context) error) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if run == nil {
			return errors.New("option WhileLeading: nil")
		}
		s.runnables = append(s.runnables, run)
		return nil
	})
}

// NodesInformer sets an informer to look up selected nodes with. The caller starts it. Without it, the node
// is read from the API server at each call that needs it.
func NodesInformer(informer cache.SharedInformer) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if informer == nil {
			return errors.New("option NodesInformer: nil")
		}
		s.nodes = informer
		return nil
	})
}

// EventRecorder sets the recorder that events go to. Defaults to one that writes to the API server.
func EventRecorder(recorder record.EventRecorder) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if recorder == nil {
			return errors.New("option EventRecorder: nil")
		}
		s.recorder = recorder
		return nil
	})
}

// Registerer registers the controller's metrics there too, beside the controller's own registry.
func Registerer(registerer prometheus.Registerer) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.registerer = registerer
		return nil
	})
}

// Timeline sets the record that the stages of claims and volumes are written to. Nil records nothing.
func Timeline(recorder *timeline.Recorder) func(*ProvisionController) error {
	return set(func(s *settings) error {
		s.timeline = recorder
		return nil
	})
}

// Logger sets the logger. Nil, the default, discards.
func Logger(logger *slog.Logger) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if logger == nil {
			logger = discardLogger()
		}
		s.logger = logger
		return nil
	})
}

// Clock sets the clock of retries and delays, for tests.
func Clock(clk clock.WithTicker) func(*ProvisionController) error {
	return set(func(s *settings) error {
		if clk == nil {
			return errors.New("option Clock: nil")
		}
		s.clock = clk
		return nil
	})
}
