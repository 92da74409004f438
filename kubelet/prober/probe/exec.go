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
)

// execTimeoutMargin is what a runtime may take beyond the probe's own timeout before the call is given up on our side.
const execTimeoutMargin = 10 * time.Second

func (p *Prober) probeExec(ctx context.Context, command []string, target Target, timeout time.Duration) (
	Result, string, error,
) {
	ctx, cancel := context.WithTimeout(ctx, timeout+execTimeoutMargin)
	defer cancel()
	resp, err := p.exec.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: target.ContainerID,
		Cmd:         ExpandStatic(command, target.Container.Env),
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

// ExpandStatic replaces $(NAME) in a command by the container's environment values that are written out in the
// Pod. References that depend on other objects stay as they are, and $$ stands for $.
func ExpandStatic(command []string, env []corev1.EnvVar) []string {
	values := make(map[string]string, len(env))
	for i := range env {
		if env[i].ValueFrom == nil {
			values[env[i].Name] = expand(env[i].Value, values)
		}
	}
	out := make([]string, len(command))
	for i, word := range command {
		out[i] = expand(word, values)
	}
	return out
}

// expand follows the API's rule for $(NAME): unknown names stay untouched.
func expand(word string, values map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(word); i++ {
		if word[i] != '$' || i+1 == len(word) {
			b.WriteByte(word[i])
			continue
		}
		switch word[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(word[i:], ')')
			if end < 0 {
				b.WriteString(word[i:])
				return b.String()
			}
			name := word[i+2 : i+end]
			if value, ok := values[name]; ok {
				b.WriteString(value)
			} else {
				b.WriteString(word[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}
