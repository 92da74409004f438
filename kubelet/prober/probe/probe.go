package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Result is the result of one probe.
type Result int

// The results. A Warning counts as success; its message is sent as an event.
const (
	Failure Result = iota
	Success
	Warning
)

// maxOutput is how much of a probe's output or response is read, in bytes.
const maxOutput = 10 << 10

// ExecRunner runs a command inside a container. Any CRI client implements it.
type ExecRunner interface {
	ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest, opts ...grpc.CallOption) (
		*runtimeapi.ExecSyncResponse, error)
}

// Target is the container to probe.
type Target struct {
	ContainerID string            // as the runtime knows it, without a "containerd://" prefix
	Container   *corev1.Container // for named ports and environment values
	PodIP       string            // used where the handler names no host
}

// Prober runs probes of every kind. It is safe for concurrent use.
type Prober struct {
	exec ExecRunner
	http *httpProber
}

// New returns a Prober that runs commands with exec.
func New(exec ExecRunner) *Prober {
	return &Prober{exec: exec, http: newHTTPProber()}
}

// Probe probes once, for at most timeout. The message explains a Failure or a Warning. An error is not a result: the
// probe could not be run (a port name that no container port has, a runtime that cannot be reached).
func (p *Prober) Probe(ctx context.Context, handler corev1.ProbeHandler, target Target, timeout time.Duration) (
	Result, string, error,
) {
	switch {
	case handler.Exec != nil:
		return p.probeExec(ctx, handler.Exec.Command, target, timeout)
	case handler.HTTPGet != nil:
		req, err := NewHTTPRequest(ctx, handler.HTTPGet, target.Container, target.PodIP, "probe")
		if err != nil {
			return Failure, "", err
		}
		return p.http.probe(req, timeout)
	case handler.TCPSocket != nil:
		port, err := ResolvePort(handler.TCPSocket.Port, target.Container)
		if err != nil {
			return Failure, "", err
		}
		host := handler.TCPSocket.Host
		if host == "" {
			host = target.PodIP
		}
		return probeTCP(ctx, host, port, timeout)
	case handler.GRPC != nil:
		service := ""
		if handler.GRPC.Service != nil {
			service = *handler.GRPC.Service
		}
		return probeGRPC(ctx, target.PodIP, int(handler.GRPC.Port), service, timeout)
	default:
		return Failure, "", errors.New("probe has no handler: set one of exec, httpGet, tcpSocket, grpc")
	}
}

// ResolvePort returns the number of a probe's or hook's port; a name is looked up in the container's ports.
func ResolvePort(port intstr.IntOrString, container *corev1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		for i := range container.Ports {
			if container.Ports[i].Name == port.StrVal {
				number = int(container.Ports[i].ContainerPort)
				break
			}
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("resolve port %q of container %q: neither a number from 1 to 65535 nor the name of one "+
			"of the container's ports", port.String(), container.Name)
	}
	return number, nil
}
