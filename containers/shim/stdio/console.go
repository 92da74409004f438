package stdio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// console is the shim's side of a process's pseudoterminal.
type console struct{ master *os.File }

// end lets the copying of the output end with what the terminal holds now.
func (c *console) end() { _ = c.master.SetReadDeadline(time.Unix(1, 0)) }

// startTerminal begins to copy from and to a terminal.
func (s *Streams) startTerminal(ctx context.Context, master *os.File) error {
	s.mu.Lock()
	s.terminal = &console{master: master}
	s.mu.Unlock()
	for _, one := range s.out {
		s.copying.Add(1)
		guard.Go(ctx, "stdio.terminalOutput", func() {
			defer s.copying.Done()
			terminal := stream{from: master, to: one.to.writer, terminal: true}
			err := terminal.copy()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = terminal.drain()
			}
			if !isClosed(err) {
				log.G(ctx).WithError(err).Warn("failed to copy the output of a terminal")
			}
			_ = one.to.writer.Close()
		})
	}
	if s.stdin != nil {
		guard.Go(ctx, "stdio.terminalInput", func() {
			_ = stream{from: s.stdin.reader, to: master}.copy()
			// The end of a terminal's input is that of the terminal: its processes get SIGHUP.
			s.Ended()
			s.copying.Wait()
			_ = master.Close()
			_ = s.stdin.reader.Close()
		})
	}
	return nil
}

// Resize sets the size of the terminal; without one it does nothing.
func (s *Streams) Resize(columns, rows uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal == nil {
		return nil
	}
	conn, err := s.terminal.master.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	err = conn.Control(func(fd uintptr) {
		failure = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// ConsoleSocket returns a pair of sockets: runc's library sends the terminal of a process over child, [ReceiveTerminal] gets it from
// parent. The caller closes both.
func ConsoleSocket() (parent, child *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create the socket for a terminal: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), os.NewFile(uintptr(fds[1]), "terminal of the process"), nil
}

// ReceiveTerminal receives a terminal that was sent before the process became ready, so it does not wait.
func ReceiveTerminal(socket *os.File) (*os.File, error) {
	name, control := make([]byte, unix.PathMax), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), name, control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	for errors.Is(err, unix.EINTR) {
		_, n, _, _, err = unix.Recvmsg(int(socket.Fd()), name, control, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	}
	if err != nil {
		return nil, fmt.Errorf("receive the terminal: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("receive the terminal: %d control messages: %w", len(messages), errors.Join(err, unix.EINVAL))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receive the terminal: %d descriptors: %w", len(fds), errors.Join(err, unix.EINVAL))
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(fmt.Errorf("receive the terminal: %w", err), unix.Close(fds[0]))
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
