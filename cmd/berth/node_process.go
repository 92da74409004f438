package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/internal/systemdunit"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/supervised"
)

// newNodeProcess returns the command of the process with the kubelet and the controllers of `berth up` and `berth node --join`. Only
// the supervisor starts it: its argument, the data directory, is for people who list processes.
func newNodeProcess() *cobra.Command {
	return &cobra.Command{
		Use: up.NodeCommand, Hidden: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			link, err := supervised.Connect()
			if err != nil {
				return err
			}
			return runNodeProcess(cmd.Context(), link)
		},
	}
}

func runNodeProcess(ctx context.Context, link *supervised.Link) error {
	signals.IgnoreSIGPIPE()
	memory.TuneGC(false)
	// The supervisor says over the link when the node is to stop. A signal ends this process alone, and no Pod.
	context.AfterFunc(ctx, func() { os.Exit(signals.ExitCode(ctx)) })
	h, err := up.ReadHandover(link)
	if err != nil {
		return errors.Join(err, link.Done(err, false))
	}
	ctx = context.WithoutCancel(ctx)
	config := up.RunConfig{Layout: h.Layout, Demo: h.Demo, Width: h.Width, Without: h.Without, APIOnly: h.APIOnly}
	if h.Member != nil {
		if config.Member, err = joinedMember(h); err != nil {
			return errors.Join(err, link.Done(err, false))
		}
	}
	cluster, err := up.New(up.Deps{Progress: link, Stopping: systemdunit.Stopping}, config)
	if err != nil {
		return errors.Join(err, link.Done(err, false))
	}
	return cluster.RunNode(ctx, link, h)
}

// joinedMember returns the member that the user's command line describes.
func joinedMember(h up.Handover) (*up.Member, error) {
	_, args, err := newRoot().Traverse(h.Argv[1:])
	if err != nil {
		return nil, err
	}
	var f nodeFlags
	cmd := newNodeWith(&f)
	cmd.Flags().String(dataDirFlag, "", "") // of addClusterCommands
	if err := cmd.ParseFlags(args); err != nil {
		return nil, err
	}
	f.own(h.Layout)
	return &up.Member{Info: *h.Member, Connect: func(ctx context.Context, m *up.Member) error {
		return f.connect(ctx, cmd, h.Layout, m)
	}}, nil
}
