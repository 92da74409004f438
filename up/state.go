package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/up/savedcluster"
	"github.com/berth-dev/berth/version"
)

// stateFormat is incremented when older versions of berth cannot read the data directory any more.
const stateFormat = 1

// state has the flags of the cluster that cannot change later, because objects in etcd and certificates depend on them.
type state struct {
	Format      int    `json:"format"`
	NodeName    string `json:"nodeName"`
	PodCIDR     string `json:"podCIDR"`
	ServiceCIDR string `json:"serviceCIDR"`
	APIPort     int    `json:"apiPort"`
	KubeletRoot string `json:"kubeletRoot,omitempty"`
	// These may change.
	APIAddress       string `json:"apiAddress,omitempty"`
	LoadBalancerCIDR string `json:"loadBalancerCIDR,omitempty"`
	// Server and Pods are set on a machine that joined a cluster: its API server, and the machine's part of PodCIDR.
	Server string `json:"server,omitempty"`
	Pods   string `json:"pods,omitempty"`
	// Isolated may change from run to run.
	Isolated bool `json:"isolated,omitempty"`
	// PagePort is that of the page, if it was free.
	PagePort int `json:"pagePort,omitempty"`
	// Hardened may change, too.
	Hardened bool `json:"hardened,omitempty"`
	// Berth and Kubernetes are the versions that ran the cluster last; empty if that was before they were recorded.
	Berth      string `json:"berth,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`

	dataDir string // where it was read, if another cluster's
}

// maxStateSize is far more than a state has.
const maxStateSize = 1 << 20

// stateName is the name of the state's file in the data directory.
const stateName = "cluster.json"

func (l Layout) statePath() string { return filepath.Join(l.DataDir, stateName) }

// isInitialized reports whether the data directory has the state of a cluster.
func (l Layout) isInitialized() bool {
	_, err := os.Stat(l.statePath())
	return !errors.Is(err, fs.ErrNotExist)
}

// removeState removes what saveState and makeDirectories created in a new data directory, so that the next start is not
// bound to the flags of a start that failed. Directories that are not empty stay.
func (l Layout) removeState() error {
	if err := os.Remove(l.statePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the state of the cluster that did not start: %w", err)
	}
	for _, dir := range []string{l.KubeletDir(), l.PodLogsDir(), filepath.Dir(l.PodLogsDir()), l.VolumesDir()} {
		_ = os.Remove(dir)
	}
	return nil
}

// ApplySavedState replaces flags that were not given by the state saved in the data directory, so that `berth up` alone
// restarts the same cluster. given reports whether the user set a flag. Port 0, which means any free port, is replaced
// by the cluster's port.
func ApplySavedState(c Config, given func(flag string) bool) (Config, error) {
	dir := c.DataDir
	if dir == "" {
		dir = DefaultDataDir
	}
	saved, err := readState(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // Complete reports ENOTDIR
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if !given("node-name") {
		c.NodeName = saved.NodeName
	}
	if !given("pod-cidr") {
		c.PodCIDR = saved.PodCIDR
	}
	if !given("service-cidr") {
		c.ServiceCIDR = saved.ServiceCIDR
	}
	if !given("kubelet-root-dir") {
		c.KubeletRoot = saved.KubeletRoot
	}
	if !given("api-port") || c.APIPort == 0 {
		c.APIPort = saved.APIPort
	}
	if !given("isolated") {
		c.Isolated = saved.Isolated
	}
	if !given("hardened") {
		c.Hardened = saved.Hardened
	}
	if !given("api-address") {
		c.APIAddress = saved.APIAddress
	}
	if !given("load-balancer-cidr") {
		c.LoadBalancerCIDR = saved.LoadBalancerCIDR
	}
	c.Server, c.NodePodCIDR, c.PagePort = saved.Server, saved.Pods, saved.PagePort
	return c, nil
}

func readState(path string) (state, error) {
	var saved state
	data, err := statefile.Read(path, maxStateSize)
	if errors.Is(err, fs.ErrPermission) {
		return saved, fmt.Errorf("read the cluster's state (use sudo, only the user who started the cluster can read it): %w", err)
	}
	if err != nil && !errors.Is(err, statefile.ErrDamaged) {
		return saved, fmt.Errorf("read the cluster's state: %w", err)
	}
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err == nil {
		err = checkSum(data)
	}
	if err != nil {
		return state{}, fmt.Errorf("%s is damaged (%w): restore it, or start over with --reset, which deletes the cluster", path, err)
	}
	if saved.Format > stateFormat {
		return saved, fmt.Errorf("%s was written by a newer berth (format %d, this one knows %d): use that berth", path,
			saved.Format, stateFormat)
	}
	if saved.Format < 1 || saved.NodeName == "" || saved.PodCIDR == "" || saved.ServiceCIDR == "" || saved.APIPort == 0 {
		return saved, fmt.Errorf("%s is incomplete: restore it, or start over with --reset, which deletes the cluster", path)
	}
	return saved, nil
}

// saveState writes the state of a new data directory, or checks the flags against the state of an existing one.
func (l Layout) saveState() error {
	saved, err := readState(l.statePath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if foreign, err := l.foreignContent(); err != nil {
			return err
		} else if l.isPartlyRestored() {
			return fmt.Errorf("--data-dir %s has a part of a cluster, because `berth snapshot restore` was interrupted: repeat that with --replace, "+
				"or delete the directory with --reset", l.DataDir)
		} else if foreign != "" {
			return fmt.Errorf("--data-dir %s contains %q but no cluster.json: restore that file from a backup if this is a cluster's directory; "+
				"if it is not, choose another one", l.DataDir, foreign)
		}
		if err := l.checkKubeletRoot(); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if saved.Server != l.Server {
			return fmt.Errorf("--data-dir %s is of %s, not of %s: choose another directory, or start over with --reset", l.DataDir,
				describeOwner(saved.Server), describeOwner(l.Server))
		}
		if err := l.checkVersions(saved.versions(), ownVersions()); err != nil {
			return err
		}
		for _, fixed := range []struct{ flag, was, now string }{
			{"node-name", saved.NodeName, l.NodeName},
			{"pod-cidr", saved.PodCIDR, l.PodCIDR},
			{"service-cidr", saved.ServiceCIDR, l.ServiceCIDR},
			{"kubelet-root-dir", saved.KubeletRoot, l.KubeletRoot},
		} {
			if fixed.was != fixed.now {
				return fmt.Errorf("the cluster in %s was created with --%s %q, which cannot change to %q: omit the flag, or "+
					"start over with --reset", l.DataDir, fixed.flag, fixed.was, fixed.now)
			}
		}
	}
	now := state{
		Format: stateFormat, NodeName: l.NodeName, PodCIDR: l.PodCIDR, ServiceCIDR: l.ServiceCIDR, APIPort: l.APIPort, KubeletRoot: l.KubeletRoot,
		APIAddress: l.APIAddress, LoadBalancerCIDR: l.LoadBalancerCIDR, Server: l.Server, Isolated: l.Isolated,
		Hardened: l.Hardened, PagePort: l.PagePort, Berth: version.Berth, Kubernetes: version.Kubernetes,
	}
	if l.Server != "" {
		now.Pods = networks{l.Pods, l.Pods6}.String()
	}
	return now.write(l.statePath())
}

// checkKubeletRoot returns an error if a kubelet uses, or used, the directory that a new cluster is to use.
func (l Layout) checkKubeletRoot() error {
	if l.KubeletRoot == "" {
		return nil
	}
	entries, err := os.ReadDir(l.KubeletRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--kubelet-root-dir: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--kubelet-root-dir %s contains %q: it is of another kubelet or cluster; choose another directory, or delete it", l.KubeletRoot,
			entries[0].Name())
	}
	return nil
}

// describeOwner says what a data directory is of.
func describeOwner(server string) string {
	if server == "" {
		return "a cluster of berth up"
	}
	return "a node of the cluster at " + server
}

// foreignContent returns the name of an entry of the data directory that berth does not create before its state; empty
// if there is none.
func (l Layout) foreignContent() (string, error) {
	entries, err := os.ReadDir(l.DataDir)
	if err != nil {
		return "", fmt.Errorf("read --data-dir: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == removal.LostAndFound && entry.IsDir() {
			continue
		}
		// A crash during the first start can leave these.
		if !isolate.IsOwnFile(entry.Name()) && entry.Name() != memberDirName && !strings.HasPrefix(entry.Name(), ".cluster.json.") {
			return entry.Name(), nil
		}
	}
	return "", nil
}

// isPartlyRestored reports whether a restore to a data directory that is a file system of its own was interrupted.
func (l Layout) isPartlyRestored() bool {
	_, err := os.Stat(filepath.Join(l.DataDir, savedcluster.WorkName))
	return err == nil
}

const lockName = isolate.LockName

// makeDataDir makes the data directory and locks it. created reports whether it did not exist.
func (l Layout) makeDataDir(ctx context.Context) (created bool, lock *os.File, err error) {
	if err := checkDataDir(l.DataDir, os.Geteuid()); err != nil {
		return false, nil, err
	}
	_, err = os.Stat(l.DataDir)
	created = errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(l.DataDir, 0o700); err != nil {
		return false, nil, fmt.Errorf("create --data-dir: %w", err)
	}
	lock, err = l.lock(ctx)
	return created, lock, err
}

// lock locks the data directory for this process. The kernel releases the lock when the process ends. If an isolated cluster
// was killed, lock waits until its first process, which inherited the lock, has removed what is left.
func (l Layout) lock(ctx context.Context) (*os.File, error) {
	path := filepath.Join(l.DataDir, lockName)
	file, err := filelock.Acquire(path)
	var held *filelock.HeldError
	if errors.As(err, &held) && held.PID > 0 && errors.Is(unix.Kill(held.PID, 0), unix.ESRCH) {
		ctx, cancel := context.WithTimeout(ctx, removal.StopTimeout)
		defer cancel()
		file, err = filelock.Wait(ctx, clock.RealClock{}, path)
	}
	if errors.As(err, &held) {
		return nil, fmt.Errorf("berth is already running on %s (%s): stop it first, or choose another --data-dir",
			l.DataDir, held.Holder())
	}
	if err != nil {
		return nil, fmt.Errorf("lock --data-dir: %w", err)
	}
	return file, nil
}
