// Package freeport finds TCP ports of loopback for programs that are told where to listen before they run.
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

// ephemeralPortsFile is where the kernel says which ports it gives to outgoing connections.
const ephemeralPortsFile = "/proc/sys/net/ipv4/ip_local_port_range"

// first and last are the ports that are tried: above those that services are known by, below the NodePorts.
const first, last = 20000, 29999

// Loopback is a port of 127.0.0.1 that nobody has now. It is none of those that the kernel gives to outgoing connections:
// any program's next connection could take it before it is listened on, or while who listens there is away for a moment.
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
	port, err := listenOn(0) // the machine's outgoing connections may have them all
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return port, nil
}

// listenOn returns the port if it can be listened on, or any that can for 0.
func listenOn(port int) (int, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// ephemeralPorts are the first and the last port of outgoing connections; the kernel's default where it does not tell.
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
