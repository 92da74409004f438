package bootstrap

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	api "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	// maxParams bounds what containerd sends at the start.
	maxParams = 10 << 20
	// apiVersion is that of the Task API.
	apiVersion = 3
	// defaultSocketDir is containerd's.
	defaultSocketDir = "/run/containerd/s"
	dialTimeout      = 100 * time.Millisecond
)

// groupAnnotations name the group of containers that share a shim, in the order in which they count.
var groupAnnotations = []string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// Start is what a shim needs to serve.
type Start struct {
	// TTRPCAddress is containerd's socket for events.
	TTRPCAddress string
	// Listener is the shim's socket; nil if the group has a shim that serves already.
	Listener *net.UnixListener
	// Result is for containerd, on the standard output.
	Result []byte
}

// Prepare reads containerd's parameters and opens the shim's socket. The working directory is the bundle.
func (c Call) Prepare(stdin io.Reader) (*Start, error) {
	data, err := io.ReadAll(io.LimitReader(stdin, maxParams))
	if err != nil {
		return nil, fmt.Errorf("read containerd's parameters: %w", err)
	}
	var params api.BootstrapParams
	if err := proto.Unmarshal(data, &params); err != nil {
		return nil, fmt.Errorf("read containerd's parameters: %w: this shim needs containerd 2.3 or later", err)
	}
	if params.GetInstanceID() != c.ID || params.GetNamespace() != c.Namespace {
		return nil, errors.New("read containerd's parameters: they are not for this container: this shim needs containerd 2.3 or later")
	}
	var runtimeOptions options.Options
	if _, err := params.FindExtension(&runtimeOptions); err != nil {
		return nil, fmt.Errorf("read the runtime's options: %w", err)
	}
	if cgroup := runtimeOptions.ShimCgroup; cgroup != "" {
		return nil, fmt.Errorf("read the runtime's options: ShimCgroup %q is not supported by this shim: remove it, or use runc's shim", cgroup)
	}
	group, err := readGroup("config.json", c.ID)
	if err != nil {
		return nil, err
	}
	dir := params.GetSocketDir()
	if dir == "" {
		dir = defaultSocketDir
	}
	path := filepath.Join(dir, fmt.Sprintf("%x", sha256.Sum256([]byte(filepath.Join(params.GetContainerdGrpcAddress(), c.Namespace, group)))))
	start := &Start{TTRPCAddress: params.GetContainerdTtrpcAddress()}
	if start.Listener, err = listen(path); err != nil {
		return nil, err
	}
	start.Result, err = proto.Marshal(&api.BootstrapResult{Version: apiVersion, Protocol: "ttrpc", Address: "unix://" + path})
	if err != nil {
		return nil, fmt.Errorf("write the result: %w", err)
	}
	return start, nil
}

// readGroup reads the group of a container from its specification; without one it is its own.
func readGroup(file, id string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the container's specification: %w", err)
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return "", fmt.Errorf("read the container's specification: %w", err)
	}
	for _, name := range groupAnnotations {
		if group := spec.Annotations[name]; group != "" {
			return group, nil
		}
	}
	return id, nil
}

// listen opens the socket; nil if a shim of the group serves it. A socket whose shim has died is replaced.
func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open the shim's socket: %w", err)
	}
	listener, err := listenOnce(path)
	if errors.Is(err, unix.EADDRINUSE) {
		if conn, err := net.DialTimeout("unix", path, dialTimeout); err == nil {
			return nil, conn.Close()
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("replace the socket of a shim that has died: %w", err)
		}
		listener, err = listenOnce(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the shim's socket: %w", err)
	}
	return listener, nil
}

func listenOnce(path string) (*net.UnixListener, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// AdjustOOMScore lets the kernel kill this shim rather than containerd, whose score it has inherited.
func AdjustOOMScore() error {
	const file = "/proc/self/oom_score_adj"
	const highest = 1000
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var score int
	if _, err := fmt.Sscan(strings.TrimSpace(string(data)), &score); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if score >= highest {
		return nil
	}
	return os.WriteFile(file, fmt.Append(nil, score+1), 0)
}
