package nodenetwork

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/internal/unixsock"
)

// procDir is the directory of a process in a procfs, which may show another PID namespace than this process's.
type procDir string

// self is this process.
const self procDir = pidfile.Proc + "/self"

func processDir(proc string, pid int) procDir { return procDir(filepath.Join(proc, strconv.Itoa(pid))) }

func (d procDir) file(name string) string { return filepath.Join(string(d), name) }

// proc returns the procfs that shows the processes of the node: that of the process behind the socket if its PID namespace is
// another one, as that of an isolated cluster.
func (n *Network) proc(ctx context.Context) string {
	if n.config.PeerSocket == "" {
		return pidfile.Proc
	}
	conn, err := unixsock.Dial(ctx, n.config.PeerSocket)
	if err != nil {
		return pidfile.Proc
	}
	defer conn.Close()
	peer := peerOf(conn)
	own, ownErr := os.Readlink(self.file("ns/pid"))
	other, err := os.Readlink(peer.file("ns/pid"))
	if ownErr != nil || err != nil || own == other {
		return pidfile.Proc
	}
	return peer.file("root/proc")
}

// peerOf returns the process that listens on the socket.
func peerOf(conn net.Conn) procDir {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return self
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return self
	}
	peer := self
	_ = raw.Control(func(fd uintptr) { // it fails for a closed connection only
		if credentials, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && credentials.Pid > 0 {
			peer = processDir(pidfile.Proc, int(credentials.Pid))
		}
	})
	return peer
}

// running returns the process of a pid file; empty if it does not run.
func (n *Network) running(ctx context.Context, file string) procDir {
	if file == "" {
		return ""
	}
	proc := n.proc(ctx)
	if pid := pidfile.Running(proc, file); pid != 0 {
		return processDir(proc, pid)
	}
	return ""
}
