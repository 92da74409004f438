package main

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
)

// TestForwardConnectsClientsInOrder connects two pairs of clients. Those of the tunnel come first, as the suite's do.
func TestForwardConnectsClientsInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- forward(ctx, socket, tunnel) }()

	dial := func(network, address string) net.Conn {
		t.Helper()
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	far := []net.Conn{dial("tcp", tunnel.Addr().String()), dial("tcp", tunnel.Addr().String())}
	near := []net.Conn{dial("unix", path), dial("unix", path)}
	for i := range far {
		for _, pair := range [][2]net.Conn{{near[i], far[i]}, {far[i], near[i]}} {
			if _, err := pair[0].Write([]byte{byte('a' + i)}); err != nil {
				t.Fatal(err)
			}
			data := make([]byte, 1)
			if _, err := io.ReadFull(pair[1], data); err != nil || data[0] != byte('a'+i) {
				t.Fatalf("client %d got %q, %v", i, data, err)
			}
		}
	}
	if err := near[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := far[0].Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the other side of a closed connection got %v", err)
	}
	cancel()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if _, err := far[1].Read(make([]byte, 1)); err == nil {
		t.Fatal("a connection is still open after the proxy has ended")
	}
}
