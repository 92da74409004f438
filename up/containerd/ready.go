package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// ErrForeign is returned, wrapped, when the containerd on the socket is not this cluster's.
var ErrForeign = errors.New("another containerd listens there")

// retryPeriod is the period of readiness checks of a containerd that is starting. It opens its socket a few milliseconds
// before its CRI service is ready, and sends no event then.
const retryPeriod = 10 * time.Millisecond

// networkTimeout is when a network that is not ready is not so by itself any more: its configuration is written again then, and again after
// twice the time.
const networkTimeout = time.Second

// conditionError says that a required condition is not true.
type conditionError struct{ name, why string }

// Error implements error.
func (e conditionError) Error() string {
	return fmt.Sprintf("condition %s is not met: %s", e.name, e.why)
}

// Probe checks once whether containerd is ready to run Pods: its CRI responds, runtime and network are ready. The error
// says what is not ready.
func Probe(ctx context.Context, socket string) error {
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	err = probe(ctx, runtimeapi.NewRuntimeServiceClient(conn))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("containerd at %q: %w", socket, err)
	}
	return nil
}

// WaitReady waits until [Probe] succeeds or ctx is done; the error then includes the last error of Probe. It fails
// immediately with [ErrForeign] if the containerd has another root than c.
func (c Config) WaitReady(ctx context.Context, clock clock.Clock) error {
	conn, err := dial(c.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	timer := clock.NewTimer(retryPeriod)
	defer timer.Stop()
	pause := networkTimeout
	for writeAgain := clock.Now().Add(pause); ; {
		err := probe(ctx, client)
		if err == nil {
			return c.checkOwner(ctx, client)
		}
		var missing conditionError
		if errors.As(err, &missing) && missing.name == runtimeapi.NetworkReady && clock.Now().After(writeAgain) {
			// containerd reads it when it starts and after each change: if it could not it does not try again.
			err = errors.Join(err, c.writeNetworks())
			pause *= 2
			writeAgain = clock.Now().Add(pause)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for containerd at %q: %w (last error: %w)", c.Socket(), context.Cause(ctx), err)
		case <-timer.C():
			timer.Reset(retryPeriod)
		}
	}
}

// CheckFree checks before a start that no other containerd uses the socket: it returns [ErrForeign] unless nothing
// listens there, or this cluster's own containerd of an earlier run does.
func (c Config) CheckFree(ctx context.Context) error {
	conn, err := dial(c.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	err = c.checkOwner(ctx, runtimeapi.NewRuntimeServiceClient(conn))
	if status.Code(errors.Unwrap(err)) == codes.Unavailable {
		return nil
	}
	return err
}

func dial(socket string) (*grpc.ClientConn, error) {
	retry := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: retryPeriod, Multiplier: 1, MaxDelay: retryPeriod},
		MinConnectTimeout: time.Second,
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(retry), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %q: %w", socket, err)
	}
	return conn, nil
}

func probe(ctx context.Context, client runtimeapi.RuntimeServiceClient) error {
	if _, err := client.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		return fmt.Errorf("read its CRI version: %w", err)
	}
	answer, err := client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("read its CRI status: %w", err)
	}
	return checkConditions(answer.GetStatus().GetConditions())
}

// checkConditions returns an error with every required condition that is not true.
func checkConditions(conditions []*runtimeapi.RuntimeCondition) error {
	missing := map[string]string{
		runtimeapi.RuntimeReady: "not reported",
		runtimeapi.NetworkReady: "not reported",
	}
	for _, condition := range conditions {
		if _, ok := missing[condition.Type]; !ok {
			continue
		}
		if condition.Status {
			delete(missing, condition.Type)
			continue
		}
		missing[condition.Type] = strings.TrimSpace(condition.Reason + " " + condition.Message)
	}
	var errs []error
	for _, name := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		if why, ok := missing[name]; ok {
			errs = append(errs, conditionError{name, why})
		}
	}
	return errors.Join(errs...)
}

// checkOwner compares the root of the running containerd with c's.
func (c Config) checkOwner(ctx context.Context, client runtimeapi.RuntimeServiceClient) error {
	answer, err := client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("read containerd's root: %w", err)
	}
	var config struct {
		Root string `json:"containerdRootDir"`
	}
	if err := json.Unmarshal([]byte(answer.GetInfo()["config"]), &config); err != nil {
		return fmt.Errorf("%w: the program at %q does not report its configuration as containerd does: %w",
			ErrForeign, c.Socket(), err)
	}
	if config.Root != c.Root {
		return fmt.Errorf("%w: at %q with root %q, and this cluster's root is %q: stop it, or choose another data directory",
			ErrForeign, c.Socket(), config.Root, c.Root)
	}
	return nil
}
