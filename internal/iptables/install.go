package iptables

import (
	"context"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/berth-dev/berth/internal/wakeup"
)

// await finds the families whose iptables works, also when it is installed later. It reports false if ctx ends before there is one.
func (k *Keeper) await(ctx context.Context) bool {
	var directories *fsnotify.Watcher
	for {
		families, err := k.find(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			k.deps.Logger.Warn("iptables is busy; retrying", "what", k.config.Name, "error", err)
			if !wakeup.Sleep(ctx, k.deps.Clock, busyDelay) {
				return false
			}
		case len(families) > 0:
			k.families = families
			return true
		case directories == nil: // it may be installed before they are watched
			k.deps.Logger.Info("no working iptables or ip6tables on this machine: nothing is kept there until one is installed", "what", k.config.Name)
			if directories, err = watchPrograms(); err != nil {
				k.deps.Logger.Warn("cannot notice when iptables is installed; start again after that", "what", k.config.Name, "error", err)
				<-ctx.Done()
				return false
			}
			defer directories.Close()
		default:
			select {
			case <-directories.Events:
			case <-directories.Errors: // events were lost
			case <-ctx.Done():
				return false
			}
		}
	}
}

// watchPrograms watches the directories in which programs are found.
func watchPrograms() (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			_ = watcher.Add(dir) // many machines lack some of them
		}
	}
	return watcher, nil
}
