package cluster_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/conformance/internal/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a berth made of a shell script; args.txt beside it takes its arguments.
func fake(t *testing.T, script string) cluster.Config {
	t.Helper()
	bin := t.TempDir()
	text := "#!/bin/sh\nprintf '%s\\n' \"$*\" >>'" + filepath.Join(bin, "args.txt") + "'\n" + script
	if err := os.WriteFile(filepath.Join(bin, "berth"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return cluster.Config{
		Bin: bin, DataDir: "/data", APIPort: 1234, PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16",
		Log: filepath.Join(bin, "log"), Timeout: time.Minute,
	}
}

// serving says that it is ready, in two writes, and ends well when it is interrupted. A signal that comes
// just before a read lets that block for ever: it waits for a process instead.
const serving = `
[ "$1" = up ] || exit 0
mkfifo "$0.wait"
cat <"$0.wait" &
trap 'kill $!; exit 0' INT
printf 'Kubernetes is rea'
printf 'dy after 1 s.\n'
wait $!
`

func TestStartWaitsUntilReadyAndStopInterrupts(t *testing.T) {
	config := fake(t, serving)
	running, err := cluster.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Import(t.Context(), "/layout"); err != nil {
		t.Error(err)
	}
	if err := running.Stop(); err != nil {
		t.Error(err)
	}
	args, err := os.ReadFile(filepath.Join(config.Bin, "args.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--data-dir /data", "--api-port 1234", "--reset", "images import /layout"} {
		if !strings.Contains(string(args), want) {
			t.Errorf("berth was not called with %q but\n%s", want, args)
		}
	}
}

func TestStartReportsBerthThatEnds(t *testing.T) {
	_, err := cluster.Start(t.Context(), fake(t, "exit 3\n"))
	if err == nil || !strings.Contains(err.Error(), "ended before it was ready") {
		t.Errorf("got %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := cluster.Start(ctx, fake(t, strings.Replace(serving, "printf 'dy after 1 s.\\n'", "", 1)))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestStopReportsBerthThatFails(t *testing.T) {
	running, err := cluster.Start(t.Context(), fake(t, strings.Replace(serving, "exit 0' INT", "exit 4' INT", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("got %v", err)
	}
}
