package controller

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Deps are the dependencies of a controller. All are optional.
type Deps struct {
	// Logger logs failures at error level. The default discards.
	Logger *slog.Logger
	// Clock is the source of time. The default is the real clock.
	Clock clock.WithTicker
	// Registerer registers the controller's metrics while it runs. By default there are no metrics.
	Registerer prometheus.Registerer
}

// Config is the configuration of a controller.
type Config struct {
	// Name identifies the controller in logs, metrics and errors. It is required.
	Name string
	// Workers is how many keys are reconciled at the same time. The default is 1.
	Workers int
	// BackoffMin is the delay before the first retry of a key; it doubles with each failure in a row. The default
	// is 5 ms.
	BackoffMin time.Duration
	// BackoffMax bounds that delay. The default is 5 min.
	BackoffMax time.Duration
	// Timeout ends the context of a single run. The default sets no limit.
	Timeout time.Duration
	// StuckAfter is how long a single run may take before the controller reports itself unhealthy. The default is
	// 10 min.
	StuckAfter time.Duration
}

// complete sets the defaults and validates the configuration.
func (c Config) complete() (Config, error) {
	if c.Name == "" {
		return c, fmt.Errorf("controller: Config.Name is required")
	}
	for _, field := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"BackoffMin", &c.BackoffMin, 5 * time.Millisecond},
		{"BackoffMax", &c.BackoffMax, 5 * time.Minute},
		{"StuckAfter", &c.StuckAfter, 10 * time.Minute},
		{"Timeout", &c.Timeout, 0},
	} {
		if *field.value < 0 {
			return c, fmt.Errorf("controller %q: Config.%s is negative: %s", c.Name, field.name, *field.value)
		}
		if *field.value == 0 {
			*field.value = field.or
		}
	}
	if c.BackoffMax < c.BackoffMin {
		return c, fmt.Errorf("controller %q: Config.BackoffMax (%s) is less than BackoffMin (%s)",
			c.Name, c.BackoffMax, c.BackoffMin)
	}
	if c.Workers < 0 {
		return c, fmt.Errorf("controller %q: Config.Workers is negative: %d", c.Name, c.Workers)
	}
	c.Workers = max(c.Workers, 1)
	return c, nil
}

func (d Deps) complete() Deps {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return d
}
