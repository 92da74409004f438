package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/up/isolate"
)

// Isolate replaces this process by the program that runs the cluster in namespaces of its own. argv is the command line of the
// process that runs the cluster there. It returns only with an error: then nothing has been changed, or that is undone.
func (c *Cluster) Isolate(ctx context.Context, argv []string) error {
	c.startedAt = c.clock.Now()
	if err := c.check(ctx); err != nil {
		return err
	}
	listener, err := c.listenOutside(ctx)
	if err != nil {
		return err
	}
	defer listener.Close()
	page, err := c.openPage(ctx)
	if err != nil {
		return err
	}
	defer page.Close() // closing nil does nothing
	created, lock, err := c.makeDataDir(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	err = c.endEarlierRun(ctx)
	if err == nil {
		err = c.becomeIsolated(ctx, lock, listener, page, created, argv)
	}
	if created {
		err = errors.Join(err, isolate.RemoveUninitialized(c.DataDir))
	}
	return err
}

// needsUserNamespace reports whether this process is not root, and the cluster can do without that in a user namespace: the API server
// alone can. A node cannot, because containers need cgroups and the users of their images.
func (c *Cluster) needsUserNamespace() bool {
	return os.Geteuid() != 0 && c.Isolated && c.config.APIOnly
}

const (
	// portRetry is how often a port is tried again whose owner is ending, portTimeout for how long.
	portRetry   = 20 * time.Millisecond
	portTimeout = 5 * time.Second
)

// listenOutside opens the API server's listening socket on the machine's loopback. A port without a living owner is of a
// process that was killed, whose threads the kernel still ends.
func (l Layout) listenOutside(ctx context.Context) (*os.File, error) {
	address := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.APIPort))
	var config net.ListenConfig
	var listener net.Listener
	err := wait.PollUntilContextTimeout(ctx, portRetry, portTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		listener, err = config.Listen(ctx, "tcp", address.String())
		if errors.Is(err, unix.EADDRINUSE) && ownerOf(socketsOn("tcp", address.Port())) == "" {
			return false, nil
		}
		return true, err
	})
	if errors.Is(err, unix.EADDRINUSE) || wait.Interrupted(err) && ctx.Err() == nil {
		return nil, portInUse(address, "--api-port")
	}
	if err != nil {
		return nil, fmt.Errorf("--api-port: listen on %s: %w", address, err)
	}
	file, err := listener.(*net.TCPListener).File() // a copy
	return file, errors.Join(err, listener.Close())
}

// endEarlierRun removes what an earlier run has left, isolated or not: an isolated cluster takes nothing over, because
// processes cannot move to other namespaces.
func (c *Cluster) endEarlierRun(ctx context.Context) error {
	if c.isClean() {
		return nil
	}
	ended, err := stopStale(ctx, c.RunDir)
	if err != nil {
		return err
	}
	for _, name := range ended {
		c.progress.Printf("stopped %s of an earlier run", name)
	}
	if err := c.cleanup(ctx); err != nil {
		return fmt.Errorf("remove what an earlier run has left: %w", err)
	}
	c.progress.Printf("removed what an earlier run, which was killed, has left: cgroups, loop devices, the run directory")
	return nil
}

// becomeIsolated executes the program that isolates the cluster. It inherits the lock and the listening socket.
func (c *Cluster) becomeIsolated(ctx context.Context, lock, listener, page *os.File, created bool, argv []string) error {
	pods, services, err := c.networks()
	if err != nil {
		return err
	}
	resolvers, err := c.resolverFiles().Read()
	if err != nil {
		return err
	}
	config := isolate.Config{
		Link: c.Bridge(), IPv6: pods.v6.IsValid(), Avoid: append(pods.list(), services.list()...), DataDir: c.DataDir, RunDir: c.RunDir, Cgroup: c.CgroupRoot(),
		UserNamespace: c.needsUserNamespace(), WithoutFirewall: !c.runs(firewallName),
		NewDataDir: created, Lock: int(lock.Fd()), Listener: int(listener.Fd()), StartedAt: c.startedAt.UnixNano(), Argv: argv,
	}
	for _, text := range resolvers.Servers {
		server, err := netip.ParseAddr(text)
		if err != nil {
			continue // Read accepts addresses only
		}
		if server.IsLoopback() {
			config.Resolvers = append(config.Resolvers, server)
		} else {
			config.Avoid = append(config.Avoid, netip.PrefixFrom(server, server.BitLen()))
		}
	}
	inherited := []*os.File{lock, listener}
	if page != nil {
		config.Page, inherited = int(page.Fd()), append(inherited, page)
	}
	for _, file := range inherited {
		if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("pass the lock and the listening sockets to %s: %w", isolate.Program, err)
		}
	}
	if err := signals.KeepParentDeathSignal(); err != nil {
		return err
	}
	program := c.Program(isolate.Program)
	if err := signals.Release(ctx); err != nil {
		return err
	}
	// In a PID namespace of its own the supervisor has another PID than systemd knows.
	err = unix.Exec(program, append([]string{program}, config.Args()...), withoutVariables(os.Environ(), watchdogPID))
	return fmt.Errorf("start %s: %w", program, err)
}

// isolatedArgs are the arguments with which the control plane serves on the machine's loopback, too; the descriptor is of the
// socket that it inherits, none if the cluster is not isolated.
func (c *Cluster) isolatedArgs() (args []string, inherited []int) {
	if c.config.Inside == nil {
		return nil, nil
	}
	const firstInherited = 3
	return []string{"--listener-fd", strconv.Itoa(firstInherited)}, []int{int(c.config.Inside.Listener.Fd())}
}
