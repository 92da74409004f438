package nodenetwork

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/explain"
)

// The states of sockets in /proc/net: a listening TCP socket, and a UDP socket without a peer.
const (
	tcpListen      = "0A"
	udpUnconnected = "07"
)

// Sockets returns the sockets on which processes in the Pod's network namespace listen; in the node's if pod is nil.
func (n *Network) Sockets(ctx context.Context, pod *corev1.Pod) ([]explain.Socket, error) {
	process, err := n.processOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	return socketsOf(process)
}

// socketsOf lists the listening sockets of the process's network namespace.
func socketsOf(process procDir) ([]explain.Socket, error) {
	var sockets []explain.Socket
	var inodes []string
	for _, table := range []struct {
		file, state string
		protocol    corev1.Protocol
	}{
		{"tcp", tcpListen, corev1.ProtocolTCP}, {"tcp6", tcpListen, corev1.ProtocolTCP},
		{"udp", udpUnconnected, corev1.ProtocolUDP}, {"udp6", udpUnconnected, corev1.ProtocolUDP},
	} {
		file, err := os.Open(process.file("net/" + table.file))
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(table.file, "6") {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("read the sockets of process %s: %w", process, err)
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			socket, inode, ok := parseSocket(lines.Text(), table.state)
			if ok {
				socket.Protocol = table.protocol
				sockets, inodes = append(sockets, socket), append(inodes, inode)
			}
		}
		err = errors.Join(lines.Err(), file.Close())
		if err != nil {
			return nil, fmt.Errorf("read the sockets of process %s: %w", process, err)
		}
	}
	owners := socketOwners(process, inodes)
	for i, inode := range inodes {
		sockets[i].Process = owners[inode]
	}
	return sockets, nil
}

// parseSocket reads a line of /proc/net/tcp and the like. ok is false for a socket of another state and for the heading.
func parseSocket(line, state string) (socket explain.Socket, inode string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != state {
		return socket, "", false
	}
	address, port, found := strings.Cut(fields[1], ":")
	raw, err := hex.DecodeString(address)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if !found || err != nil || portErr != nil || len(raw) != net.IPv4len && len(raw) != net.IPv6len {
		return socket, "", false
	}
	for i := 0; i < len(raw); i += 4 { // words in the byte order of the machine, which is little-endian
		slices.Reverse(raw[i : i+4])
	}
	return explain.Socket{Address: net.IP(raw), Port: int32(number)}, fields[9], true
}

// socketOwners returns the processes that have the sockets open, by their inodes. It searches the processes in the network
// namespace of the given one.
func socketOwners(process procDir, inodes []string) map[string]string {
	owners := make(map[string]string)
	if len(inodes) == 0 {
		return owners
	}
	namespace, err := os.Readlink(process.file("ns/net"))
	if err != nil {
		return owners
	}
	dirs, _ := filepath.Glob(filepath.Join(filepath.Dir(string(process)), "[0-9]*")) // the pattern is right
	for _, dir := range dirs {
		if own, err := os.Readlink(filepath.Join(dir, "ns/net")); err != nil || own != namespace {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // it has ended
		}
		for _, entry := range entries {
			link, err := os.Readlink(filepath.Join(dir, "fd", entry.Name()))
			inode, isSocket := strings.CutPrefix(link, "socket:[")
			if inode = strings.TrimSuffix(inode, "]"); err == nil && isSocket && owners[inode] == "" && slices.Contains(inodes, inode) {
				owners[inode] = processText(dir)
			}
		}
	}
	return owners
}

// processText names the process of a directory in /proc.
func processText(dir string) string {
	name, _ := os.ReadFile(filepath.Join(dir, "comm")) // without it the number is enough
	return strings.TrimSpace(fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), filepath.Base(dir)))
}
