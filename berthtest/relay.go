package berthtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/accept"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/netns"
	"github.com/berth-dev/berth/up/isolate"
)

// relays pass connections from the cluster's loopback on to that of this process. The zero value has none.
type relays struct {
	listeners []net.Listener
	running   sync.WaitGroup
}

// reach makes what listens at the port of the host reachable from the cluster at the same address, if that is one of loopback. The
// cluster reaches the machine's other addresses by its link.
func (r *running) reach(host string, port int) error {
	addresses, err := net.LookupIP(host)
	if err != nil {
		return fmt.Errorf("LocalServingHost %s: %w", host, err)
	}
	for _, ip := range addresses {
		if !ip.IsLoopback() {
			continue
		}
		address := net.JoinHostPort(ip.String(), portText(port))
		if err := r.relays.add(r.listen, address); err != nil {
			return fmt.Errorf("make webhooks at %s reachable from the cluster: %w", address, err)
		}
	}
	return nil
}

// add relays an address of the cluster, on which listen listens.
func (r *relays) add(listen func(address string) (net.Listener, error), address string) error {
	listener, err := listen(address)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("a component of the cluster uses the port: choose another LocalServingPort: %w", err)
	}
	if err != nil {
		return err
	}
	r.listeners = append(r.listeners, listener)
	r.running.Add(1)
	go contain.Guard("berthtest.relay", address, func() {
		defer r.running.Done()
		r.accept(listener, address)
	})()
	return nil
}

// listen listens on an address in the cluster's network namespace.
func (r *running) listen(address string) (listener net.Listener, err error) {
	if os.Geteuid() != 0 { // a process that is not root may not enter the namespaces, even of its own cluster
		return isolate.ListenInside(r.cluster.DataDir(), address)
	}
	first, err := childOf(r.cluster.PID())
	if err != nil {
		return nil, err
	}
	err = netns.Do(fmt.Sprintf("/proc/%d/ns/net", first), func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, err
}

// accept passes each connection on until the listener is closed.
func (r *relays) accept(listener net.Listener, address string) {
	for {
		inside, err := accept.Next(context.Background(), listener)
		if err != nil {
			return // it was closed
		}
		outside, err := net.Dial("tcp", address)
		if err != nil { // nothing listens there yet
			_ = inside.Close()
			continue
		}
		// Each ends when one of the two ends does; when the cluster ends, so do its connections.
		go contain.Guard("berthtest.relay", address, func() { pass(inside, outside) })()
		go contain.Guard("berthtest.relay", address, func() { pass(outside, inside) })()
	}
}

// pass copies from one connection to the other until the end, and closes both.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from) // an end of either kind
	_ = errors.Join(to.Close(), from.Close())
}

// close ends the relays.
func (r *relays) close() {
	for _, listener := range r.listeners {
		_ = listener.Close()
	}
	r.listeners = nil
	r.running.Wait()
}

// childOf returns the only child process of a process.
func childOf(pid int) (int, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		if fields := strings.Fields(string(data)); len(fields) > 0 {
			return strconv.Atoi(fields[0])
		}
	}
	return 0, fmt.Errorf("process %d has no child process: it ends, or the kernel has no /proc/PID/task/TID/children", pid)
}
