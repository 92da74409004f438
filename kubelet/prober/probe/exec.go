package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/envvars"
)

// execTimeoutMargin is how long the runtime may take beyond the probe's timeout before the call is cancelled.
const execTimeoutMargin = 10 * time.Second

func (p *Prober) probeExec(ctx context.Context, command []string, target Target, timeout time.Duration) (
	Result, string, error,
) {
	ctx, cancel := context.WithTimeout(ctx, timeout+execTimeoutMargin)
	defer cancel()
	resp, err := p.exec.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: target.ContainerID,
		Cmd:         expandCommand(command, target.Container.Env),
		Timeout:     int64(timeout.Seconds()),
	})
	switch {
	case status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		return Failure, fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(command, " "), timeout), nil
	case err != nil:
		return Failure, "", fmt.Errorf("run probe command in container %q: %w", target.Container.Name, err)
	}
	output := string(slices.Concat(resp.Stdout, resp.Stderr))
	if len(output) > maxOutput {
		output = output[:maxOutput]
	}
	if resp.ExitCode != 0 {
		return Failure, output, nil
	}
	return Success, output, nil
}

// expandCommand replaces $(NAME) in a command by the container's environment variables whose values the Pod's spec
// contains. References to variables that come from other objects stay as they are.
func expandCommand(command []string, env []corev1.EnvVar) []string {
	var known []envvars.Var
	for i := range env {
		if env[i].ValueFrom == nil {
			value := envvars.ExpandAll([]string{env[i].Value}, known)[0]
			known = append(known, envvars.Var{Name: env[i].Name, Value: value})
		}
	}
	return envvars.ExpandAll(command, known)
}
