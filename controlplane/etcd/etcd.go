// Package etcd runs the cluster's store inside this process. It serves on one
// unix socket and listens on no port: a cluster of one member has no peers.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// quotaBytes is the most that the store may hold: etcd's own maximum advice.
// Its default of 2 GiB fills up under a few thousand pods with frequent events.
const quotaBytes = 8 << 30

// memberName is the member's name. Only etcd's own log shows it.
const memberName = "berth"

// memberURL is the peer address that a member must have in its own records.
// Nothing listens there. It must never change: it is part of the cluster's identity.
const memberURL = "http://localhost:2380"

// A lone member elects itself after one to two election timeouts, at every
// start, and has no peer that a short one could disturb: etcd's default of 1 s
// would be the longest wait of the whole start.
const (
	tickMs     = 20
	electionMs = 100
)

// Config configures the store.
type Config struct {
	// DataDir is the member's directory. It is created with mode 0700.
	DataDir string
	// Socket is the absolute path of the unix socket. Its directory is created
	// with mode 0700: access to the socket is access to the whole cluster.
	Socket string
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// UnsafeNoFsync skips fsync. For tests only.
	UnsafeNoFsync bool
	// Checker is a program that says whether a database is whole, as `containerd check-database FILE`; empty for none: what is damaged stays so.
	Checker string
	// Crashed says that an earlier store has ended by itself: the database is checked before it is opened.
	Crashed bool
}

// Endpoint is what the API server's --etcd-servers must be to reach socket.
func Endpoint(socket string) string { return "unix://" + socket }

// Server is the store. Use it once.
type Server struct{ config Config }

// New returns a store that Run starts.
func New(config Config) *Server { return &Server{config: config} }

// Run serves until ctx ends and then stops cleanly; ready is called once, when
// requests are served. It is an error if the store ends before ctx does.
func (s *Server) Run(ctx context.Context, ready func()) error {
	for _, dir := range []string{s.config.DataDir, filepath.Dir(s.config.Socket)} {
		if err := atomicfile.Dir(dir); err != nil {
			return err
		}
	}
	config, err := s.embedConfig()
	if err != nil {
		return err
	}
	if s.config.Crashed {
		if err := s.setAsideDamaged(ctx); err != nil {
			return err
		}
	}
	if err := removeUnfinished(s.config.DataDir); err != nil {
		return err
	}
	if damage := s.damageOfLog(); damage != nil {
		if err := s.remakeLog(ctx, damage); err != nil {
			return err
		}
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("open etcd data in %q: %w", s.config.DataDir, err)
	}
	defer server.Close()

	select {
	case <-server.Server.ReadyNotify():
		ready()
	case err := <-server.Err():
		return fmt.Errorf("start etcd: %w", err)
	case <-server.Server.StopNotify():
		return errors.New("start etcd: it stopped before it was ready")
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-server.Err():
		return fmt.Errorf("serve etcd: %w", err)
	case <-server.Server.StopNotify():
		return errors.New("serve etcd: it stopped by itself")
	case <-ctx.Done():
		return nil
	}
}

func (s *Server) embedConfig() (*embed.Config, error) {
	member, err := url.Parse(memberURL)
	if err != nil {
		return nil, fmt.Errorf("parse member address: %w", err)
	}
	config := embed.NewConfig()
	config.Name = memberName
	config.Dir = s.config.DataDir
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{*member}
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Path: s.config.Socket}}
	config.AdvertiseClientUrls = []url.URL{*member} // must look like host:port; no client uses it
	config.InitialCluster = config.Name + "=" + memberURL
	config.EnableGRPCGateway = false
	config.TickMs, config.ElectionMs = tickMs, electionMs
	config.QuotaBackendBytes = quotaBytes
	config.UnsafeNoFsync = s.config.UnsafeNoFsync
	// NewConfig leaves this at 0, which warns about every single request.
	config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	config.Logger = "zap"
	config.LogLevel = s.config.LogLevel
	config.LogOutputs = []string{"stderr"}
	return config, nil
}
