package disposable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/filelock"
)

// Names of lock files beside the directories of the clusters.
const startLock, processorLock = "starting", "processor"

// turnLimit bounds a turn: a cluster whose Node does not become ready keeps others from starting no longer.
const turnLimit = 10 * time.Second

// turn orders the starts of the clusters of a directory, which may be of several processes: as many as the machine has processors come up to
// their Node at a time, which is less work than all together, and what follows the Node waits, shortly, for those whose Node is not ready.
type turn struct {
	locks []*os.File
	timer *time.Timer
	once  sync.Once
}

// takeTurn waits for the turn of a cluster.
func takeTurn(ctx context.Context, root string) (*turn, error) {
	shared, err := filelock.Share(filepath.Join(root, startLock))
	if err != nil {
		return nil, fmt.Errorf("order the starts of clusters: %w", err)
	}
	processors := make([]string, runtime.GOMAXPROCS(0))
	for i := range processors {
		processors[i] = filepath.Join(root, processorLock+strconv.Itoa(i))
	}
	processor, err := filelock.FirstOf(ctx, processors)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("order the starts of clusters: %w", err), shared.Close())
	}
	t := &turn{locks: []*os.File{shared, processor}}
	t.timer = time.AfterFunc(turnLimit, t.end)
	return t, nil
}

// end ends the turn. It may be called more than once.
func (t *turn) end() {
	t.once.Do(func() {
		for _, lock := range t.locks {
			_ = lock.Close() // which releases it, whatever it returns
		}
	})
}

// stop ends the turn of a cluster whose start has ended.
func (t *turn) stop() {
	t.timer.Stop()
	t.end()
}

// SaysNodeReady reports whether `berth up` says by a line, which Config.OnLine gets, that the Node is ready.
func SaysNodeReady(line string) bool {
	words := strings.Fields(line)
	return len(words) > 2 && words[0] == "node" && words[2] == "ready"
}
