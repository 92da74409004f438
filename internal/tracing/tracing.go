// Package tracing makes the OpenTelemetry tracer provider of a process: as the tracing section of KubeletConfiguration
// says, or as the standard OTEL_* variables do.
package tracing

import (
	"context"
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	componenttracing "k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// Provider is a tracer provider that sends what is still queued when it is shut down.
type Provider interface {
	trace.TracerProvider
	Shutdown(ctx context.Context) error
}

// Enabled reports whether the environment requests traces: an OTLP endpoint is set, and neither the SDK nor the exporter of
// traces is switched off.
func Enabled(getenv func(string) string) bool {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if exporter := getenv("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		return false
	}
	return getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// FromEnvironment returns a provider that sends to the endpoint of the OTEL_* variables, over HTTP unless
// OTEL_EXPORTER_OTLP_PROTOCOL is grpc. It does not connect yet. The service is its name unless OTEL_SERVICE_NAME is set.
func FromEnvironment(ctx context.Context, service string, options ...sdktrace.TracerProviderOption) (*sdktrace.TracerProvider, error) {
	exporter, err := exporterFromEnvironment(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up traces by OTEL_EXPORTER_OTLP_*: %w", err)
	}
	return New(ctx, exporter, service, options...)
}

// exporterFromEnvironment returns the exporter of the protocol that the variables name.
func exporterFromEnvironment(ctx context.Context) (sdktrace.SpanExporter, error) {
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	switch protocol {
	case "", "http/protobuf":
		return otlptracehttp.New(ctx)
	case "grpc":
		return otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: want grpc or http/protobuf", protocol)
	}
}

// New returns a provider that sends to the exporter.
func New(ctx context.Context, exporter sdktrace.SpanExporter, service string, options ...sdktrace.TracerProviderOption,
) (*sdktrace.TracerProvider, error) {
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the default name.
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("set up traces by OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdktrace.NewTracerProvider(append(options, sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))...), nil
}

// FromConfig returns a provider that sends over OTLP/gRPC, as the configuration says. It does not connect yet.
func FromConfig(ctx context.Context, config *tracingapi.TracingConfiguration, service, host string) (Provider, error) {
	provider, err := componenttracing.NewProvider(ctx, config, nil, []resource.Option{resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("host.name", host))})
	if err != nil {
		return nil, fmt.Errorf("set up traces by tracing: %w", err)
	}
	return provider, nil
}
