//go:build integration

package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/netns"
)

// The packets of SCTP (RFC 9260) that begin an association.
const (
	sctpInit    = 1
	sctpInitAck = 2

	sctpHeaderSize = 12
	// sctpTag is what both ends of the tests choose to recognize packets of the association.
	sctpTag = 0x62657274
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket returns a packet with one chunk, an INIT or its acknowledgement.
func sctpPacket(kind byte, from, to uint16, tag uint32) []byte {
	packet := binary.BigEndian.AppendUint16(nil, from)
	packet = binary.BigEndian.AppendUint16(packet, to)
	packet = binary.BigEndian.AppendUint32(packet, tag)
	packet = append(packet, 0, 0, 0, 0) // the checksum
	chunk := binary.BigEndian.AppendUint32(nil, sctpTag)
	chunk = append(chunk, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1) // the window, one stream in each direction, the first number
	if kind == sctpInitAck {
		chunk = append(chunk, 0, 7, 0, 8, 1, 2, 3, 4) // a cookie
	}
	packet = append(packet, kind, 0)
	packet = binary.BigEndian.AppendUint16(packet, uint16(4+len(chunk)))
	packet = append(packet, chunk...)
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, castagnoli))
	return packet
}

// sctpPorts returns the ports of a packet with a chunk of that kind and a right checksum.
func sctpPorts(packet []byte, kind byte) (from, to uint16, ok bool) {
	if len(packet) <= sctpHeaderSize || packet[sctpHeaderSize] != kind {
		return 0, 0, false
	}
	sum := binary.LittleEndian.Uint32(packet[8:])
	clear(packet[8:sctpHeaderSize])
	return binary.BigEndian.Uint16(packet), binary.BigEndian.Uint16(packet[2:]), sum == crc32.Checksum(packet, castagnoli)
}

// podNetwork returns the network namespace of a running Pod.
func podNetwork(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	require.NoError(t, err)
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), id) {
			return filepath.Join(filepath.Dir(file), "ns/net")
		}
	}
	require.Fail(t, "no process of the Pod", "%s/%s", pod.Namespace, pod.Name)
	return ""
}

// sctpSocket opens a socket for the packets of SCTP of one family in a Pod's network. The Pod's kernel needs no SCTP for that.
func sctpSocket(t *testing.T, pod *corev1.Pod, address string) *net.IPConn {
	t.Helper()
	network := "ip6:132"
	if net.ParseIP(address).To4() != nil {
		network = "ip4:132"
	}
	var socket *net.IPConn
	require.NoError(t, netns.Do(podNetwork(t, pod), func() (err error) {
		socket, err = net.ListenIP(network, nil)
		return err
	}))
	t.Cleanup(func() { _ = socket.Close() })
	return socket
}

// checkSCTP has a client begin an association with a Service, whose Pod listens on another port. Both write the packets
// themselves: they show that the Service's address and port are translated in both directions, checksums included.
func (c *cluster) checkSCTP(t *testing.T, client, server *corev1.Pod, address string, port, targetPort uint16) {
	t.Helper()
	const clientPort = 31132
	listening := sctpSocket(t, server, address)
	served := make(chan struct{})
	go func() {
		defer close(served)
		buffer := make([]byte, 1500)
		for {
			n, from, err := listening.ReadFrom(buffer)
			if err != nil {
				return
			}
			if source, to, ok := sctpPorts(buffer[:n], sctpInit); ok && to == targetPort {
				_, _ = listening.WriteTo(sctpPacket(sctpInitAck, to, source, sctpTag), from)
			}
		}
	}()
	socket := sctpSocket(t, client, address)
	buffer := make([]byte, 1500)
	var from net.Addr
	require.NoError(t, c.poll(func(context.Context) bool {
		_, err := socket.WriteTo(sctpPacket(sctpInit, clientPort, port, 0), &net.IPAddr{IP: net.ParseIP(address)})
		if err != nil || socket.SetReadDeadline(time.Now().Add(time.Second)) != nil {
			return false
		}
		var n int
		if n, from, err = socket.ReadFrom(buffer); err != nil {
			return false
		}
		source, to, ok := sctpPorts(buffer[:n], sctpInitAck)
		return ok && source == port && to == clientPort
	}), "no acknowledgement from %s port %d", address, port)
	require.Equal(t, address, from.String(), "the client sees the Service, not the Pod")
	require.NoError(t, errors.Join(listening.Close(), socket.Close()))
	<-served
}
