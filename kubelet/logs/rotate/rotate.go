package rotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/deadlines"
	"github.com/berth-dev/berth/internal/wakeup"
)

// Defaults of Config.
const (
	DefaultMaxSize  = 10 << 20
	DefaultMaxFiles = 5
	DefaultWorkers  = 1
	DefaultPeriod   = 10 * time.Second
)

const (
	// firstCheck is how long after its first write a log is checked.
	firstCheck = 100 * time.Millisecond
	// minCheck is the shortest time between two checks of one log.
	minCheck = 50 * time.Millisecond
)

// Runtime makes a container continue in a new log file.
type Runtime interface {
	ReopenContainerLog(ctx context.Context, in *runtimeapi.ReopenContainerLogRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ReopenContainerLogResponse, error)
}

// Log is the log file of one running container, or of another process.
type Log struct {
	ContainerID string // without the runtime's name; of another process any name
	Path        string
	// InPlace is set for a process that keeps its file open and appends to it (O_APPEND): its content is moved to another
	// file.
	InPlace bool
}

// Config are the values of a Rotator.
type Config struct {
	// MaxSize is the size from which on a file is rotated, in bytes; DefaultMaxSize if zero.
	MaxSize int64
	// MaxFiles is the maximum number of files of a container, including the current one; DefaultMaxFiles if zero, at least
	// 2.
	MaxFiles int
	// Workers is how many logs are rotated at once; DefaultWorkers if zero.
	Workers int
	// Period is the longest time between two checks of a log that is written to; DefaultPeriod if zero. The kernel has no
	// event for a file's size.
	Period time.Duration
	// InPlace is set for a Rotator all of whose logs are InPlace.
	InPlace bool
}

// Deps are what a Rotator works with. Runtime is required for logs that are not InPlace.
type Deps struct {
	Runtime Runtime
	Logger  *slog.Logger
	Clock   clock.WithTicker
}

// Rotator rotates logs. SetLogs may be called by any goroutine.
type Rotator struct {
	config Config
	deps   Deps
	wake   wakeup.Signal

	mu    sync.Mutex // guards inbox
	inbox []func()

	// The rest is used by the goroutine of Start only.
	logs  map[string]*openLog // by container
	owned map[string][]string // containers by their owner
	due   *deadlines.Queue[string]
	// writes is nil where the kernel cannot report writes: then each log is checked each period.
	writes  *writeEvents
	workers sync.WaitGroup
	slots   chan struct{} // holds one element for each worker
	packer  *packer
}

// openLog is the log of a running container.
type openLog struct {
	Log
	// size is that at the time at, and interval the time from then to the next check.
	size     int64
	at       time.Time
	interval time.Duration
	rotating bool
}

// New returns a Rotator. Start runs it.
func New(deps Deps, config Config) (*Rotator, error) {
	if deps.Runtime == nil && !config.InPlace {
		return nil, errors.New("rotate: Deps.Runtime is required")
	}
	setDefault(&config.MaxSize, DefaultMaxSize)
	setDefault(&config.MaxFiles, DefaultMaxFiles)
	setDefault(&config.Workers, DefaultWorkers)
	setDefault(&config.Period, DefaultPeriod)
	if config.MaxSize < 0 || config.MaxFiles < 2 || config.Workers < 1 || config.Period < minCheck {
		return nil, fmt.Errorf("rotate: Config.MaxSize %d, MaxFiles %d, Workers %d and Period %s: want a size above 0, at "+
			"least 2 files, 1 worker and %s", config.MaxSize, config.MaxFiles, config.Workers, config.Period, minCheck)
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Rotator{
		config: config, deps: deps, wake: wakeup.NewSignal(), logs: map[string]*openLog{}, owned: map[string][]string{},
		due: deadlines.New[string](), slots: make(chan struct{}, config.Workers), packer: newPacker(deps.Logger),
	}, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// SetLogs sets the logs of the running containers of one owner, in place of those that it had.
func (r *Rotator) SetLogs(owner string, logs []Log) {
	r.post(func() { r.setLogs(owner, logs) })
}

// post has fn run by Start.
func (r *Rotator) post(fn func()) {
	r.mu.Lock()
	r.inbox = append(r.inbox, fn)
	r.mu.Unlock()
	r.wake.Notify()
}

// Start rotates logs until ctx ends. It is called once.
func (r *Rotator) Start(ctx context.Context) error {
	writes, err := newWriteEvents(func(id string) { r.post(func() { r.written(id) }) })
	if err != nil {
		r.deps.Logger.Warn("logs are checked periodically", "period", r.config.Period, "error", err)
	} else {
		r.writes = writes
		r.workers.Go(contain.Loop(ctx, "rotate.writes", "", func(ctx context.Context) {
			writes.Start(ctx, r.deps.Logger)
			r.post(r.writesLost)
		}))
	}
	r.workers.Go(contain.Loop(ctx, "rotate.pack", "", r.packer.Start))
	defer r.workers.Wait()
	for ctx.Err() == nil {
		r.mu.Lock()
		inbox := r.inbox
		r.inbox = nil
		r.mu.Unlock()
		for _, fn := range inbox {
			fn()
		}
		for {
			id, ok := r.due.PopDue(r.deps.Clock.Now())
			if !ok {
				break
			}
			r.check(ctx, r.logs[id])
		}
		r.sleep(ctx)
	}
	return nil
}

// sleep waits for the next check, for something posted, or for the end of ctx.
func (r *Rotator) sleep(ctx context.Context) {
	next, ok := r.due.Next()
	if !ok {
		select {
		case <-r.wake.C():
		case <-ctx.Done():
		}
		return
	}
	timer := r.deps.Clock.NewTimer(next.Sub(r.deps.Clock.Now()))
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-r.wake.C():
	case <-ctx.Done():
	}
}

func (r *Rotator) setLogs(owner string, logs []Log) {
	now := r.deps.Clock.Now()
	keep := map[string]bool{}
	ids := make([]string, 0, len(logs))
	for _, log := range logs {
		keep[log.ContainerID] = true
		ids = append(ids, log.ContainerID)
		if r.logs[log.ContainerID] == nil {
			r.logs[log.ContainerID] = &openLog{Log: log, at: now}
			r.due.Set(log.ContainerID, now)
		}
	}
	for _, id := range r.owned[owner] {
		if keep[id] {
			continue
		}
		delete(r.logs, id)
		r.due.Remove(id)
		if r.writes != nil {
			r.writes.forget(id)
		}
	}
	r.owned[owner] = ids
	if len(ids) == 0 {
		delete(r.owned, owner)
	}
}

// writesLost has each log checked each period, because the kernel reports no more writes.
func (r *Rotator) writesLost() {
	r.writes = nil
	for id, log := range r.logs {
		if !log.rotating && !r.due.Has(id) {
			r.schedule(log, r.config.Period)
		}
	}
}

// written handles the first write to a log since it was last checked.
func (r *Rotator) written(id string) {
	log := r.logs[id]
	if log == nil || log.rotating || r.due.Has(id) {
		return
	}
	log.at = r.deps.Clock.Now()
	r.schedule(log, firstCheck)
}

func (r *Rotator) schedule(log *openLog, interval time.Duration) {
	log.interval = interval
	r.due.Set(log.ContainerID, log.at.Add(interval))
}

// check rotates a log that is too large, and decides when to check it next.
func (r *Rotator) check(ctx context.Context, log *openLog) {
	size, err := measure(log.Path)
	now := r.deps.Clock.Now()
	if err != nil || size >= r.config.MaxSize {
		r.startRotation(ctx, log)
		return
	}
	grown, took := size-log.size, now.Sub(log.at)
	log.size, log.at = size, now
	if grown <= 0 {
		r.watch(log)
		return
	}
	untilFull := time.Duration(float64(took) * float64(r.config.MaxSize-size) / float64(grown))
	r.schedule(log, max(min(r.config.Period, untilFull, 2*max(log.interval, firstCheck)), minCheck))
}

// watch requests the event of the next write to a log. Without events the log is checked each period.
func (r *Rotator) watch(log *openLog) {
	if r.writes == nil {
		r.schedule(log, r.config.Period)
		return
	}
	if err := r.writes.watch(log.ContainerID, log.Path); err != nil {
		r.deps.Logger.Warn("failed to watch a log; checking it periodically", "log", log.Path, "period", r.config.Period, "error", err)
		r.schedule(log, r.config.Period)
		return
	}
	if size, err := measure(log.Path); err != nil || size != log.size {
		r.schedule(log, firstCheck) // what was written before the watch has no event
	}
}

// startRotation rotates a log when a worker is free.
func (r *Rotator) startRotation(ctx context.Context, log *openLog) {
	log.rotating = true
	target := log.Log
	r.workers.Go(contain.Guard("rotate.startRotation", "", func() {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := contain.Do("rotate.rotate", target.Path, func() error { return r.rotateIfLarge(ctx, target) })
		<-r.slots
		if err != nil && ctx.Err() == nil {
			r.deps.Logger.Warn("failed to rotate container log", "log", target.Path, "error", err)
		}
		r.packer.pack(target.Path)
		r.post(func() { r.rotated(log, err) })
	}))
}

// rotated records the end of a rotation: the new file is checked soon, after a failure later.
func (r *Rotator) rotated(log *openLog, err error) {
	if r.logs[log.ContainerID] != log {
		return // the container has ended
	}
	log.rotating, log.size, log.at = false, 0, r.deps.Clock.Now()
	if err != nil {
		r.schedule(log, r.config.Period)
		return
	}
	r.schedule(log, minCheck)
}

// measure returns the size of a log, 0 for what is not a regular file.
func measure(path string) (int64, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, fmt.Errorf("measure log %q: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return 0, nil
	}
	return info.Size(), nil
}

// rotateIfLarge rotates one log if it is too large.
func (r *Rotator) rotateIfLarge(ctx context.Context, log Log) error {
	size, err := measure(log.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if log.InPlace {
			return create(log.Path) // it was removed: the process writes to a file without a name until it ends
		}
		// An earlier process died between renaming it and opening a new one.
		if err := r.reopen(ctx, log); err != nil {
			return err
		}
		_, err = measure(log.Path)
	}
	if err != nil {
		return err
	}
	if size < r.config.MaxSize {
		return nil
	}
	// One file is the log itself, and one the rotated file that it becomes.
	if err := prune(log.Path, r.config.MaxFiles-2); err != nil {
		return err
	}
	rotated, err := unusedName(log.Path, r.deps.Clock.Now())
	if err != nil {
		return err
	}
	if log.InPlace {
		return move(log.Path, rotated)
	}
	if err := os.Rename(log.Path, rotated); err != nil {
		return fmt.Errorf("rename log: %w", err)
	}
	if err := r.reopen(ctx, log); err != nil {
		// The runtime still writes to the file: restore its name, so that it can be read and rotated later.
		return errors.Join(err, os.Rename(rotated, log.Path))
	}
	return nil
}

func (r *Rotator) reopen(ctx context.Context, log Log) error {
	_, err := r.deps.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: log.ContainerID})
	if err != nil {
		return fmt.Errorf("open a new log of container %s: %w", log.ContainerID, err)
	}
	return nil
}
