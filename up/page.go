package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/explain/nodenetwork"
	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/page"
	"github.com/berth-dev/berth/up/supervisor"
)

// pageName is the name of the component that shows the cluster in the browser. It costs a listening socket while no page is open.
const pageName = "page"

// openPage opens the listening socket of the page on the machine's loopback, at the port of the last run if that is free, so that
// bookmarks stay right. The file is nil without a page, as on a machine that joined a cluster. An isolated cluster has inherited the
// socket.
func (c *Cluster) openPage(ctx context.Context) (*os.File, error) {
	if c.config.Member != nil || !c.runs(pageName) {
		return nil, nil //nolint:nilnil // see above
	}
	if inside := c.config.Inside; inside != nil {
		return inside.Page, c.adoptPagePort(inside.Page)
	}
	listener, err := listenLoopback(ctx, c.PagePort)
	if c.PagePort == 0 || errors.Is(err, unix.EADDRINUSE) {
		// Port 0 is no way to choose one: any connection could take it before the next start.
		if c.PagePort, err = freeport.Loopback(); err == nil {
			listener, err = listenLoopback(ctx, c.PagePort)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the page (--without %s does without): %w", pageName, err)
	}
	file, err := listener.File() // a copy
	return file, errors.Join(err, listener.Close())
}

// listenLoopback listens on a port of 127.0.0.1; it does nothing for port 0.
func listenLoopback(ctx context.Context, port int) (*net.TCPListener, error) {
	if port == 0 {
		return nil, nil //nolint:nilnil // see above
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}

// adoptPagePort remembers the port of a socket that was opened outside of the cluster's namespaces. The file may be nil.
func (c *Cluster) adoptPagePort(socket *os.File) error {
	if socket == nil {
		return nil
	}
	address, err := unix.Getsockname(int(socket.Fd()))
	if err != nil {
		return fmt.Errorf("use the page's socket: %w", err)
	}
	if v4, ok := address.(*unix.SockaddrInet4); ok {
		c.PagePort = v4.Port
	}
	return nil
}

// inheritPage uses the page's socket that the supervisor has passed to the node's process.
func (c *Cluster) inheritPage() error {
	unix.CloseOnExec(supervisor.FilesFD)
	c.pageSocket = os.NewFile(supervisor.FilesFD, "page")
	listener, err := net.FileListener(c.pageSocket)
	if err != nil {
		return fmt.Errorf("use the page's socket: %w", err)
	}
	defer listener.Close() // newPageServer makes one for each start
	c.page, err = page.New(page.Deps{
		Connect: c.connectPage, Records: localRecords{c.timeline}, Network: nodenetwork.New(c.NodeNetwork()), Logger: c.logger, Clock: c.clock,
	}, page.Config{Address: listener.Addr(), Command: c.commandHint, Cluster: c.NodeName})
	return err
}

// commandHint returns a command that an explanation names, as one for this cluster.
func (c *Cluster) commandHint(next string) string {
	command := strings.TrimPrefix(next, "berth ")
	if !strings.Contains(command, " ") {
		return next
	}
	return c.Hint(command)
}

// connectPage returns the client of the page: that of the administrator, who has got the link, for reading alone.
func (c *Cluster) connectPage() (kubernetes.Interface, error) {
	config, err := clientConfig(c.ownerKubeconfig())
	if err != nil {
		return nil, err
	}
	return page.NewClient(config)
}

// newPageServer returns the server of the page.
func (c *Cluster) newPageServer() (runFunc, error) {
	if c.page == nil {
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, nil
	}
	listener, err := net.FileListener(c.pageSocket)
	if err != nil {
		return nil, fmt.Errorf("use the page's socket: %w", err)
	}
	return func(ctx context.Context) error { return c.page.Serve(ctx, listener) }, nil
}
