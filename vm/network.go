package vm

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// maxFrame bounds an Ethernet frame with segmentation offload.
const maxFrame = 128 << 10

// Network is a virtual Ethernet that machines of one process are plugged into: a hub, which passes each frame on to all
// other machines. Nothing outside can reach it.
type Network struct {
	path     string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	ports map[*port]struct{} // guarded by mu
	macs  int                // guarded by mu
}

// port is one machine's end. Its writer is guarded by mu.
type port struct {
	mu   sync.Mutex
	conn net.Conn
}

// NewNetwork makes a network whose socket is at the path. The caller closes it after its machines.
func NewNetwork(ctx context.Context, path string) (*Network, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("make network of virtual machines: %w", err)
	}
	n := &Network{path: path, listener: listener, ports: map[*port]struct{}{}}
	n.wg.Go(n.accept)
	return n, nil
}

// nextMAC returns an address that no other machine of the network has.
func (n *Network) nextMAC() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.macs++
	return fmt.Sprintf("52:54:00:be:01:%02x", n.macs)
}

func (n *Network) accept() {
	for {
		conn, err := n.listener.Accept()
		if err != nil {
			return // it is closed
		}
		p := &port{conn: conn}
		n.mu.Lock()
		n.ports[p] = struct{}{}
		n.mu.Unlock()
		n.wg.Go(func() { n.forward(p) })
	}
}

// forward passes on the machine's frames until its qemu ends. On the stream each frame comes after its length, four
// bytes, the highest first.
func (n *Network) forward(p *port) {
	defer func() {
		n.mu.Lock()
		delete(n.ports, p)
		n.mu.Unlock()
		_ = p.conn.Close() // the machine is gone
	}()
	reader := bufio.NewReaderSize(p.conn, maxFrame)
	for {
		var head [4]byte
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return
		}
		size := binary.BigEndian.Uint32(head[:])
		if size > maxFrame {
			return
		}
		frame := make([]byte, 4+size)
		copy(frame, head[:])
		if _, err := io.ReadFull(reader, frame[4:]); err != nil {
			return
		}
		for _, other := range n.others(p) {
			other.send(frame)
		}
	}
}

func (n *Network) others(p *port) []*port {
	n.mu.Lock()
	defer n.mu.Unlock()
	var others []*port
	for other := range n.ports {
		if other != p {
			others = append(others, other)
		}
	}
	return others
}

// send drops the frame if the machine is gone, as a cable does.
func (p *port) send(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.conn.Write(frame)
}

// Close ends the network and waits for its goroutines.
func (n *Network) Close() error {
	err := n.listener.Close()
	n.mu.Lock()
	for p := range n.ports {
		err = errors.Join(err, p.conn.Close())
	}
	n.mu.Unlock()
	n.wg.Wait()
	return err
}
