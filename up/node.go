package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/join"
	"github.com/berth-dev/berth/up/supervised"
	"github.com/berth-dev/berth/up/supervisor"
)

const (
	// nodeProcess is the name of the process with the kubelet and Berth's controllers among the cluster's processes.
	nodeProcess = "node"
	// NodeCommand is the hidden command of berth that is this process.
	NodeCommand = "node-process"
)

// Handover is what the process that prepares the machine hands over to the node's process.
type Handover struct {
	Layout  Layout   `json:"layout"`
	Demo    bool     `json:"demo,omitempty"`
	Width   int      `json:"width,omitempty"`
	Without []string `json:"without,omitempty"`
	APIOnly bool     `json:"apiOnly,omitempty"`
	// Argv is the command line of the process that the user started.
	Argv []string `json:"argv"`
	// Member is set on a machine that joined a cluster: what that says about itself.
	Member *join.Info `json:"member,omitempty"`
	// Inside is the address of an isolated cluster, and Inside6 that of IPv6; invalid for another, and Inside6 also without IPv6.
	Inside  netip.Addr `json:"inside"`
	Inside6 netip.Addr `json:"inside6"`
	// Page says that the node's process inherits the page's listening socket.
	Page          bool      `json:"page,omitempty"`
	StartedAt     time.Time `json:"startedAt"`
	AddressFilter bool      `json:"addressFilter,omitempty"`
}

// ReadHandover returns what was handed over to this process.
func ReadHandover(link *supervised.Link) (Handover, error) {
	var h Handover
	if err := json.Unmarshal(link.Hello.Config, &h); err != nil {
		return h, fmt.Errorf("read what berth up has handed over: %w", err)
	}
	return h, nil
}

// handover is what this process hands over. page says that there is a socket of the page.
func (c *Cluster) handover(page bool) Handover {
	h := Handover{
		Layout: c.Layout, Demo: c.config.Demo, Width: c.config.Width, Without: c.config.Without, APIOnly: c.config.APIOnly, Argv: c.config.Argv,
		StartedAt: c.startedAt, AddressFilter: c.addressFilter, Page: page,
	}
	if c.config.Member != nil {
		h.Member = &c.config.Member.Info
	}
	if inside := c.config.Inside; inside != nil {
		h.Inside, h.Inside6 = inside.Address, inside.Address6
	}
	return h
}

// isolation is that of the node's process; nil in the machine's own namespaces. The supervisor has its descriptors.
func (h Handover) isolation() *isolate.Inside {
	if !h.Inside.IsValid() {
		return nil
	}
	return &isolate.Inside{Address: h.Inside, Address6: h.Inside6, StartedAt: h.StartedAt}
}

// becomeSupervisor replaces this process by the supervisor. It returns only with an error.
func (c *Cluster) becomeSupervisor(ctx context.Context, clean bool, lock, proxyLock, page *os.File) error {
	c.spareFromOOM()
	config, err := json.Marshal(c.handover(page != nil))
	if err != nil {
		return fmt.Errorf("hand over to the node's process: %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	plan := supervisor.Plan{
		Config: config, Clean: clean, Log: c.Log("berth"), Stopped: "stopped the control plane and containerd",
		Files: []int{int(lock.Fd())},
		// Its death ends no Pod. What it does with a Pod's programs needs the environment of the user.
		Node: supervisor.Program{
			Name: nodeProcess, Path: program, Argv: []string{os.Args[0], NodeCommand, c.DataDir}, Env: withoutNotification(os.Environ()), Log: c.Log("berth"),
			PIDFile: c.pidFile(nodeProcess), DeathSignal: syscall.SIGKILL, Health: c.socketHealth(nodeProcess, maxHealthFailures),
		},
	}
	if c.config.Member == nil {
		plan.Programs = []supervisor.Program{c.controlplaneProgram()}
	}
	if c.config.Inside != nil {
		plan.Files = append(plan.Files, int(c.config.Inside.Listener.Fd()))
	}
	if page != nil { // it stays open while the node's process is started again
		fd := int(page.Fd())
		plan.Files, plan.Node.Files = append(plan.Files, fd), []int{fd}
	}
	if proxyLock != nil {
		fd := int(proxyLock.Fd())
		plan.Files, plan.Release = append(plan.Files, fd), []int{fd} // removing the rules of kube-proxy needs the lock
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return supervisor.Exec(c.Program(supervisor.ProgramName), os.Args, plan)
}

// RunNode does what the supervisor wants of the node's process: it runs the node until it is to stop, or it removes what the
// cluster's processes have left.
func (c *Cluster) RunNode(ctx context.Context, link *supervised.Link, h Handover) error {
	c.link, c.startedAt, c.addressFilter = link, h.StartedAt, h.AddressFilter
	c.processStartedAt = c.clock.Now()
	c.config.Inside = h.isolation()
	if link.Hello.Task == supervisor.TaskCleanup {
		return link.Done(c.cleanupAfterRun(ctx), false)
	}
	c.reloadCertificates()
	logFile, err := c.openLog()
	if err != nil {
		return errors.Join(err, link.Done(err, false))
	}
	defer logFile.Close()
	if h.Page {
		if err := c.inheritPage(); err != nil {
			return errors.Join(err, link.Done(err, false))
		}
	}
	if err := c.serveHealth(ctx); err != nil {
		return err
	}
	keptPods, err := c.runUntilDone(ctx)
	if err != nil && c.isRestart() && !c.stopping.Load() {
		return err // the cluster runs on, and this process is started again
	}
	return link.Done(err, keptPods)
}

// isRestart reports whether this process is not the first node's process of the run: what fails now is tried again.
func (c *Cluster) isRestart() bool { return c.link.Hello.Restarts > 0 }
