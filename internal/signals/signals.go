// Package signals stops a program in order on signals, also after the readers of its output are gone, and returns its exit
// code.
package signals

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Signal is the cause of a context that a signal ended.
type Signal struct{ syscall.Signal }

func (s Signal) Error() string { return s.String() + " signal received" }

// Context returns a context that is cancelled by SIGINT, SIGTERM or SIGHUP, with the [Signal] as its cause. A program calls
// it once; the handlers stay until the program ends.
//
// A second SIGINT or SIGTERM ends the program immediately. A second SIGHUP does not: closing one terminal sends two of
// them, one forwarded by the login shell and one by the kernel when that shell has ended. A SIGHUP that is ignored, as
// under nohup, stays ignored.
//
// After a signal a write to a closed pipe fails instead of ending the program: of `program | tee`, Ctrl-C ends tee first.
func Context() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	stops, hangups := make(chan os.Signal, 1), make(chan os.Signal, 1)
	received := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	signal.Notify(stops, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // Notify would override that
		signal.Notify(hangups, syscall.SIGHUP) // it stays registered
		received = append(received, syscall.SIGHUP)
	}
	stop := func(came os.Signal) {
		IgnoreSIGPIPE()
		cancel(Signal{came.(syscall.Signal)})
	}
	handlers := &handlers{stops: stops, hangups: hangups, received: received, stop: stop, released: make(chan struct{})}
	go func() {
		for {
			select {
			case came := <-stops:
				signal.Stop(stops)
				stop(came)
			case came := <-hangups:
				stop(came)
			case handlers.released <- struct{}{}:
				return
			}
		}
	}()
	return context.WithValue(ctx, handlersKey{}, handlers)
}

// handlers are those of a context.
type handlers struct {
	stops, hangups chan os.Signal
	// received are the signals that the channels get.
	received []syscall.Signal
	stop     func(came os.Signal)
	// released gets the end of the goroutine that receives from the channels.
	released chan struct{}
}

type handlersKey struct{}

// Release ends the handlers of the context, for a program that this process executes next: a signal that came until now cancels the
// context, whose cause is returned, and later ones end the process, so that none is lost in between. It is called once.
func Release(ctx context.Context) error {
	h, ok := ctx.Value(handlersKey{}).(*handlers)
	if !ok {
		return context.Cause(ctx)
	}
	for _, channel := range []chan os.Signal{h.stops, h.hangups} {
		signal.Stop(channel) // what came before is in the channel afterwards
	}
	for _, received := range h.received {
		if err := setDefault(received); err != nil {
			return err
		}
	}
	<-h.released // and what the goroutine took from it has cancelled the context
	for _, channel := range []chan os.Signal{h.stops, h.hangups} {
		select {
		case came := <-channel:
			h.stop(came)
		default:
		}
	}
	return context.Cause(ctx)
}

// IgnoreSecondSignal makes the program ignore a second SIGINT or SIGTERM: for a program that receives two of a single
// Ctrl-C, one from the terminal and one from its parent process.
func IgnoreSecondSignal() { signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM) }

// IgnoreSIGPIPE makes writes to a closed standard output or standard error fail with EPIPE instead of ending the program.
func IgnoreSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// ExitCode returns the exit code of a program that ended early because ctx was cancelled: 128 plus the signal's number, as
// usual on Unix. A closed output counts as SIGPIPE, a closed terminal as SIGHUP. ctx must be done.
func ExitCode(ctx context.Context) int {
	cause, by := context.Cause(ctx), Signal{syscall.SIGPIPE}
	if !errors.As(cause, &by) && errors.Is(cause, syscall.EIO) {
		by.Signal = syscall.SIGHUP
	}
	return 128 + int(by.Signal)
}
