package bootstrap

import (
	"errors"
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// RedirectOutput connects the standard streams of a shim that goes on after its start: nothing on input and output, the FIFO "log" in
// the bundle, which containerd reads, as standard error and for the log. Nothing that is written there waits for containerd: what does
// not fit while it is away is lost.
func RedirectOutput(debug bool) error {
	// Open for reading, too, the FIFO stays when containerd closes its end.
	fifo, err := unix.Open("log", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the shim's log: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(err, unix.Close(fifo))
	}
	defer null.Close()
	for standard, target := range []int{int(null.Fd()), int(null.Fd()), fifo} {
		if err := unix.Dup3(target, standard, 0); err != nil {
			return errors.Join(fmt.Errorf("redirect the shim's output: %w", err), unix.Close(fifo))
		}
	}
	logrus.SetFormatter(&logrus.TextFormatter{DisableColors: true})
	if debug {
		logrus.SetLevel(logrus.DebugLevel)
	}
	logrus.SetOutput(logFIFO(fifo))
	return nil
}

// logFIFO writes without waiting.
type logFIFO int

func (f logFIFO) Write(line []byte) (int, error) {
	if _, err := unix.Write(int(f), line); err != nil && !errors.Is(err, unix.EAGAIN) {
		return 0, err
	}
	return len(line), nil
}
