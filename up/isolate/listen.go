package isolate

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// listenSocket is the socket in the data directory of a cluster with a user namespace on which ListenInside asks for listeners.
	listenSocket = "listen.sock"
	// listenTimeout bounds one request, so that a client that stands still does not keep others waiting.
	listenTimeout = 10 * time.Second
	// maxAddress bounds the address of a request and the text of an error.
	maxAddress = 512
)

// ListenInside listens on a TCP address in the network namespace of the cluster in the data directory, which has a user namespace: this
// process may not enter either.
func ListenInside(dataDir, address string) (net.Listener, error) {
	connection, err := net.DialTimeout("unix", filepath.Join(dataDir, listenSocket), listenTimeout)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	unixConnection := connection.(*net.UnixConn)
	if err := connection.SetDeadline(time.Now().Add(listenTimeout)); err != nil {
		return nil, err
	}
	if _, err := connection.Write([]byte(address)); err != nil {
		return nil, err
	}
	text, rights := make([]byte, maxAddress), make([]byte, unix.CmsgSpace(4))
	n, rightsLength, _, _, err := unixConnection.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, fmt.Errorf("listen on %s in the cluster's network namespace: %w", address, err)
	}
	if rightsLength == 0 {
		return nil, fmt.Errorf("listen on %s in the cluster's network namespace: %s", address, text[:n])
	}
	return listenerOf(rights[:rightsLength])
}

// listenerOf returns the listener whose descriptor a message has.
func listenerOf(rights []byte) (net.Listener, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	if len(messages) != 1 {
		return nil, fmt.Errorf("got %d control messages in the place of one", len(messages))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		return nil, fmt.Errorf("got %d descriptors in the place of one", len(fds))
	}
	unix.CloseOnExec(fds[0])
	file := os.NewFile(uintptr(fds[0]), "listener")
	defer file.Close()
	return net.FileListener(file) // a copy
}

// serveListeners serves ListenInside until this process ends.
func (c Config) serveListeners() error {
	path := filepath.Join(c.DataDir, listenSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of an earlier run
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	go contained("isolate.serveListeners", func() {
		for {
			connection, err := listener.AcceptUnix()
			if err != nil {
				log("listen for the programs of the test: %v", err)
				return
			}
			contained("isolate.serveListener", func() { serveListener(connection) })()
		}
	})()
	return nil
}

// serveListener replies to one request with the descriptor of a listener, or with the text of an error.
func serveListener(connection *net.UnixConn) {
	defer connection.Close()
	address := make([]byte, maxAddress)
	err := connection.SetDeadline(time.Now().Add(listenTimeout))
	var n int
	if err == nil {
		n, err = connection.Read(address)
	}
	var file *os.File
	if err == nil {
		file, err = listenFile(string(address[:n]))
	}
	if err != nil {
		text := err.Error()
		_, _ = connection.Write([]byte(text[:min(len(text), maxAddress)])) // a client that is gone wants no reply
		return
	}
	defer file.Close()
	_, _, _ = connection.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil)
}

// listenFile listens on a TCP address and returns the socket's descriptor.
func listenFile(address string) (*os.File, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return listener.(*net.TCPListener).File() // a copy
}
