package isolate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// firstVariable names a FIFO: the test's program that has it is the first process of the namespaces, and waits there before it begins.
const firstVariable = "BERTH_TEST_FIRST_PROCESS"

func TestMain(m *testing.M) {
	gate := os.Getenv(firstVariable)
	if gate == "" {
		goleak.VerifyTestMain(m)
		return
	}
	config, err := Parse(os.Args[1:])
	if err == nil {
		_, err = os.ReadFile(gate) // until the test has opened and closed it
	}
	code := 1
	if err == nil {
		code, err = config.RunInit(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// TestASignalBeforeTheFirstProcessHasItsHandlersIsNotLost sends the signal while the first process of the namespaces has not begun to
// receive signals: the kernel would drop it.
func TestASignalBeforeTheFirstProcessHasItsHandlersIsNotLost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	require.NoError(t, syscall.Mkfifo(gate, 0o600))
	t.Setenv(firstVariable, gate)
	lock, err := os.Create(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	listener, err := os.Create(filepath.Join(dir, "listener"))
	require.NoError(t, err)
	copied, err := syscall.Dup(int(listener.Fd())) // startInit closes it
	require.NoError(t, err)
	config := Config{
		Link: "berth-test", DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Cgroup: "/berth-test-" + filepath.Base(dir),
		Lock: int(lock.Fd()), Listener: copied, StartedAt: 1, Argv: []string{"/bin/sleep", "infinity"},
	}
	first, control, err := config.startInit(lock)
	require.NoError(t, err)
	ended := make(chan int, 1)
	go func() { ended <- wait(first) }()
	t.Cleanup(func() { _ = first.Process.Kill() }) // it has ended if all went well

	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	code := make(chan int, 1)
	go func() { code <- forward(first.Process, control, signals, ended) }()
	open, err := os.OpenFile(gate, os.O_WRONLY, 0) // the first process opens it, too
	require.NoError(t, err)
	require.NoError(t, open.Close())
	address := netip.MustParseAddr("198.18.0.2")
	require.NoError(t, json.NewEncoder(control).Encode(addresses{V4: address}))
	require.Equal(t, 128+int(syscall.SIGTERM), <-code, "the cluster ended by the signal")
	require.NoError(t, control.Close())
}
