// Package freeport finds free TCP ports of loopback, for programs whose ports are configured before they start.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ephemeralPortsFile has the range of ports that the kernel assigns to outgoing connections.
const ephemeralPortsFile = "/proc/sys/net/ipv4/ip_local_port_range"

// first and last are the ports that are tried: above those that services are known by, below the NodePorts.
const first, last = 20000, 29999

// Loopback returns a free port of 127.0.0.1. It is outside of the range that the kernel assigns to outgoing connections,
// because any connection could occupy such a port before a program listens on it, or while the program restarts.
func Loopback() (int, error) {
	ports := last - first + 1
	low, high := ephemeralPorts()
	for i, start := 0, rand.IntN(ports); i < ports; i++ {
		port := first + (start+i)%ports
		if low <= port && port <= high {
			continue
		}
		free, err := listenOn(port)
		if err == nil {
			return free, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return 0, fmt.Errorf("find a free port: %w", err)
		}
	}
	port, err := listenOn(0) // the range may cover all of them
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return port, nil
}

// Prefer returns the port if it is free on 127.0.0.1, and another one as Loopback does if it is not.
func Prefer(port int) (int, error) {
	if _, err := listenOn(port); err == nil {
		return port, nil
	}
	return Loopback()
}

// listenOn returns the port if it is free, or any free port for 0.
func listenOn(port int) (int, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// ephemeralPorts returns the first and the last port of outgoing connections, or the kernel's defaults if they cannot be
// read.
func ephemeralPorts() (low, high int) {
	data, err := os.ReadFile(ephemeralPortsFile)
	words := strings.Fields(string(data))
	if err == nil && len(words) == 2 {
		low, err = strconv.Atoi(words[0])
		if err == nil {
			high, err = strconv.Atoi(words[1])
		}
		if err == nil {
			return low, high
		}
	}
	return 32768, 60999
}
