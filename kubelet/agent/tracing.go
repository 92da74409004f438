package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/berth-dev/berth/internal/tracing"
)

// lastTracesTimeout bounds how long an agent that stops waits for the collector of traces.
const lastTracesTimeout = 5 * time.Second

// instrumentation is the name of the scope of the agent's spans.
const instrumentation = "github.com/berth-dev/berth/kubelet"

// validateTracing returns an error that names the field of KubeletConfiguration that is wrong.
func validateTracing(config *tracingapi.TracingConfiguration) error {
	return tracingapi.ValidateTracingConfiguration(config, nil, field.NewPath("tracing")).ToAggregate()
}

// newTracing returns the provider of Config.Tracing with its shutdown, or else that of Deps; nil if neither requests traces. It
// does not connect yet.
func newTracing(ctx context.Context, deps *Deps, config *Config) (trace.TracerProvider, func(context.Context) error, error) {
	keep := func(context.Context) error { return nil }
	if config.Tracing == nil {
		return deps.TracerProvider, keep, nil
	}
	host := config.Node.Hostname
	setDefault(&host, config.Node.Name)
	provider, err := tracing.FromConfig(ctx, config.Tracing, "kubelet", host)
	if err != nil {
		return nil, nil, fmt.Errorf("agent: %w", err)
	}
	return provider, provider.Shutdown, nil
}

// tracer returns the agent's tracer, nil if there are no traces.
func (b *base) tracer() trace.Tracer {
	if b.tracing == nil {
		return nil
	}
	return b.tracing.Tracer(instrumentation)
}

// stopTracing sends the last spans.
func (b *base) stopTracing(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTracesTimeout)
	defer cancel()
	if err := b.shutdownTracing(ctx); err != nil && !errors.Is(err, context.Canceled) {
		b.deps.Logger.Warn("failed to send the last traces", "error", err)
	}
}
