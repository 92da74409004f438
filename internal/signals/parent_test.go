package signals_test

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/signals"
)

// roleEnv says what a process of TestParentDeathSignalSurvivesExec is.
const roleEnv = "PARENT_DEATH_ROLE"

// TestParentDeathSignalSurvivesExec starts a process that starts another one with a parent-death signal, which executes cat from any
// of its threads. When the first one is killed, cat must end, and with it the last writer to the pipe.
func TestParentDeathSignalSurvivesExec(t *testing.T) {
	again := func(role string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), roleEnv+"="+role)
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
		return cmd
	}
	switch os.Getenv(roleEnv) {
	case "parent":
		child := again("child")
		child.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		_ = child.Run() // it is killed together with this process
		os.Exit(1)
	case "child":
		executed := make(chan error)
		go func() { // seldom on the first thread
			err := signals.KeepParentDeathSignal()
			if err == nil {
				err = unix.Exec("/bin/cat", []string{"cat"}, nil)
			}
			executed <- err
		}()
		_, _ = os.Stdout.WriteString((<-executed).Error())
		os.Exit(1)
	}
	parent := again("parent")
	parent.Stdin, parent.Stdout = nil, nil
	in, err := parent.StdinPipe()
	require.NoError(t, err)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	_, err = io.WriteString(in, "hello\n")
	require.NoError(t, err)
	buffer := make([]byte, len("hello\n"))
	_, err = io.ReadFull(out, buffer)
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(buffer), "cat runs")
	require.NoError(t, parent.Process.Kill())
	_, err = out.Read(buffer)
	require.ErrorIs(t, err, io.EOF, "cat has ended")
	require.ErrorContains(t, parent.Wait(), "signal: killed")
}
