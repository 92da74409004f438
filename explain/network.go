package explain

import (
	"context"
	"errors"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ErrOtherMachine is what the methods of a [Network] wrap for a Pod that does not run on its machine.
var ErrOtherMachine = errors.New("it runs on another machine")

// Network reads and uses the network of one node of the cluster, which the API does not show.
type Network interface {
	// Sockets returns the sockets on which the processes of the Pod listen; those of the node if pod is nil.
	Sockets(ctx context.Context, pod *corev1.Pod) ([]Socket, error)
	// ReadFile reads a small file as the containers of the Pod see it. The error wraps [io/fs.ErrNotExist] if it does not
	// exist.
	ReadFile(ctx context.Context, pod *corev1.Pod, path string) ([]byte, error)
	// Dial connects to an address, which has no names, from the Pod's network; from the node's if pod is nil.
	Dial(ctx context.Context, pod *corev1.Pod, network, address string) (net.Conn, error)
	// Proxy returns the state of the node's kube-proxy.
	Proxy(ctx context.Context) (ProxyState, error)
	// DNSProblem says why the node's DNS program does not run; it is empty if it runs, or if the node has none.
	DNSProblem(ctx context.Context) string
	// Resolvers returns the addresses of the servers to which the cluster's DNS forwards names of the outside, and the file
	// that has them.
	Resolvers(ctx context.Context) (servers []string, file string, err error)
}

// Socket is a socket on which a process listens.
type Socket struct {
	// Protocol is that of the socket.
	Protocol corev1.Protocol
	// Address is the address that it is bound to; an unspecified one accepts connections to all.
	Address net.IP
	Port    int32
	// Process is "name (process PID)", or empty if unknown.
	Process string
}

// ProxyState is the state of a kube-proxy.
type ProxyState struct {
	// Disabled says that the cluster was started without a kube-proxy of its own.
	Disabled bool
	// Problem says why it does not run or does not respond; it is empty if it does.
	Problem string
	// QueuedAt is when it last learned of a change, and SyncedAt when it last wrote all its rules.
	QueuedAt, SyncedAt time.Time
	// Failures is how often it failed to write its rules since it was started.
	Failures int
	// LogFile is the file of its log; it may be empty.
	LogFile string
}

// maxSyncDelay is how long after a change kube-proxy may take to write its rules before that counts as a problem. It writes
// them within milliseconds, and takes about a second for thousands of Services.
const maxSyncDelay = 2 * time.Second
