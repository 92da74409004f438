package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/internal/contain"
)

// defaultPushPort is the port of registries in most instructions.
const defaultPushPort = 5000

// Limits of the push endpoint's connections.
const (
	pushHeaderTimeout = 10 * time.Second
	pushIdleTimeout   = 2 * time.Minute
)

func newImagesServe() *cobra.Command {
	var port int
	options := imagestore.PushOptions{MaxBytes: imagestore.DefaultMaxBytes}
	cmd := &cobra.Command{
		Use: "serve [-- COMMAND…]", Short: "Accept pushes of images on loopback (docker push, ko, crane): Pods can use them at once",
		Long: "Serves a registry on 127.0.0.1 that writes into the cluster's images, until Ctrl-C or, with a COMMAND, until that has ended,\n" +
			"whose exit code it has then. COMMAND is logged in: DOCKER_CONFIG has the user's own logins and this one, and KO_DOCKER_REPO the\n" +
			"registry's name.\n" +
			"Others log in with what is printed; the password is a new one each time. Connections do not leave the machine.\n\n" +
			"An image pushed to 127.0.0.1:5000/app:v1 has that name in Pods. One pushed to 127.0.0.1:5000/ghcr.io/acme/app:v1 has the name\n" +
			"ghcr.io/acme/app:v1, so that manifests need no change. Pods with imagePullPolicy Always, as with the tag latest, would pull it.\n" +
			"What clients push with an image, such as its bill of materials or its signature, is accepted and not kept.",
		Example: "  berth images serve\n  berth images serve -- ko build ./cmd/app\n  berth images serve --port 0 -- sh -c 'docker push $KO_DOCKER_REPO/app:v1'",
		RunE: func(cmd *cobra.Command, command []string) error {
			if port < 0 || port > 65535 {
				return usageError{fmt.Errorf("--port %d: not between 0 and 65535", port)}
			}
			if len(command) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usageError{fmt.Errorf("unexpected argument %q: write -- before the command to run: see %s --help", command[0], cmd.CommandPath())}
			}
			return withStore(cmd, func(ctx context.Context, store *imagestore.Store) error {
				return servePushes(ctx, cmd, store, port, options, command)
			})
		},
	}
	cmd.Flags().IntVar(&port, "port", defaultPushPort, "port on 127.0.0.1, which is a part of the images' names; 0: any free one")
	cmd.Flags().Var(&sizeFlag{&options.MaxBytes}, "max-size", "the most that a layer, and each image unpacked, may have, such as 10Gi")
	return markService(cmd)
}

// servePushes serves until ctx is done or the command has ended.
func servePushes(ctx context.Context, cmd *cobra.Command, store *imagestore.Store, port int, options imagestore.PushOptions, command []string) (err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("port %d of 127.0.0.1 is in use: choose another --port (0 takes a free one)", port)
	}
	if err != nil {
		return fmt.Errorf("listen for pushes: %w", err)
	}
	options.Pushed = func(name string) { fmt.Fprintf(cmd.ErrOrStderr(), "pushed %s\n", name) }
	options.Dropped = func(name string) { fmt.Fprintf(cmd.ErrOrStderr(), "not kept, because Pods cannot use it: %s\n", name) }
	handler := store.NewPushHandler(options)
	defer func() { err = errors.Join(err, handler.Close(context.WithoutCancel(ctx))) }()
	server := &http.Server{
		Handler: contain.Handler("images.serve", handler), ReadHeaderTimeout: pushHeaderTimeout, IdleTimeout: pushIdleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	registry := listener.Addr().String()
	group, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	defer done()
	group.Go(contain.Func("berth.servePushes", "", func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve pushes: %w", err)
		}
		return nil
	}))
	group.Go(contain.Func("berth.stopPushes", "", func() error {
		<-ctx.Done()
		return server.Close()
	}))
	if len(command) > 0 {
		group.Go(contain.Func("berth.runPusher", "", func() error {
			defer done()
			return runPusher(ctx, cmd, registry, handler, command)
		}))
	} else {
		fmt.Fprintf(cmd.OutOrStdout(), "accepting pushes on %s until Ctrl-C\n\n  log in      docker login %s --username %s --password %s\n"+
			"  push        docker push %s/app:v1, which Pods name so\n              docker push %s/ghcr.io/acme/app:v1, which Pods name ghcr.io/acme/app:v1\n",
			registry, registry, handler.User, handler.Password, registry, registry)
	}
	return group.Wait()
}

// runPusher runs a command that is logged in to the registry.
func runPusher(ctx context.Context, cmd *cobra.Command, registry string, handler *imagestore.PushHandler, command []string) (err error) {
	dir, err := os.MkdirTemp("", "berth-push-")
	if err != nil {
		return fmt.Errorf("make the credentials of %s: %w", command[0], err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeDockerConfig(dir, dockerConfigDir(), registry, handler.User, handler.Password); err != nil {
		return fmt.Errorf("write the credentials of %s: %w", command[0], err)
	}
	return runChild(ctx, cmd, command, "DOCKER_CONFIG="+dir, "KO_DOCKER_REPO="+registry)
}
