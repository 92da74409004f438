package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	eventservice "github.com/containerd/containerd/api/services/events/v1"
	containerdtypes "github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// Exits keeps how containers ended where containerd would forget it. A containerd that starts takes a container that
// ended while it was away for the rest of a failed start, deletes it in its shim and tells exit code 255, "Unknown";
// and one that dies between deleting an ended container and writing down its end loses it, too. The shims know, so they
// are asked before containerd starts ([Exits.Begin]) and until it has looked at all ([Exits.Settle]); while it runs, its
// own events tell ([Exits.Follow]). What is known lies in files, because whoever learned it may be killed next.
// It is safe for concurrent use.
type Exits struct {
	config Config
	logger *slog.Logger

	mu       sync.Mutex // guards below
	settled  chan struct{}
	watching *watch // of the shims, between Begin and Settle
}

// exit is what a record holds.
type exit struct {
	Code int32 `json:"code"`
	// Finished is in nanoseconds since 1970, by the shim's clock.
	Finished int64 `json:"finished"`
}

// NewExits makes the store of one cluster's containerd; of config, Root and RunDir are needed. logger may be nil.
func NewExits(config Config, logger *slog.Logger) *Exits {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	settled := make(chan struct{})
	close(settled)
	return &Exits{config: config, logger: logger, settled: settled}
}

func (e *Exits) dir() string { return filepath.Join(e.config.RunDir, "exits") }

// Exit tells how a container ended, if that is known. It waits while the shims are still being asked.
func (e *Exits) Exit(ctx context.Context, id string) (code int32, finished time.Time, ok bool) {
	if code, finished, ok = e.read(id); ok {
		return code, finished, true
	}
	e.mu.Lock()
	settled := e.settled
	e.mu.Unlock()
	select {
	case <-settled:
		return e.read(id)
	case <-ctx.Done():
		return 0, time.Time{}, false
	}
}

func (e *Exits) read(id string) (code int32, finished time.Time, ok bool) {
	data, err := os.ReadFile(filepath.Join(e.dir(), filepath.Base(id)))
	var known exit
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.logger.Warn("reading how a container ended failed", "container", id, "error", err)
		}
		return 0, time.Time{}, false
	}
	return known.Code, time.Unix(0, known.Finished), true
}

// note keeps how a container ended. It does so once: of a shim that dies after its container, containerd tells another
// end, which it has made up.
func (e *Exits) note(id string, code uint32, finished time.Time) {
	if _, _, known := e.read(id); known {
		return
	}
	data, err := json.Marshal(exit{Code: int32(code), Finished: finished.UnixNano()})
	if err == nil {
		err = atomicfile.WriteVolatile(filepath.Join(e.dir(), filepath.Base(id)), data, 0o600)
	}
	if err != nil {
		e.logger.Warn("keeping how a container ended failed", "container", id, "error", err)
	}
}

// Begin asks the shims how their containers fare, before containerd starts. An error says why nothing can be kept; a
// shim that does not answer is logged, and its containers' ends are then what containerd makes of them.
func (e *Exits) Begin(ctx context.Context) error {
	if err := os.MkdirAll(e.dir(), 0o700); err != nil {
		return fmt.Errorf("keep how containers end: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching != nil { // containerd died before it was ready
		e.watching.end()
	} else {
		e.settled = make(chan struct{})
	}
	if err := e.forget(); err != nil {
		e.logger.Warn("forgetting ends of containers that are gone failed", "error", err)
	}
	e.watching = watchShims(ctx, e.config, e.note, e.logger)
	return nil
}

// Settle ends what Begin began, once containerd is ready: it has looked at every container, and follows them itself.
func (e *Exits) Settle(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching == nil {
		return
	}
	e.watching.settle(ctx)
	e.watching = nil
	close(e.settled)
}

// forget removes the records of containers that are gone.
func (e *Exits) forget() error {
	entries, err := os.ReadDir(e.dir())
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if !e.config.hasContainer(entry.Name()) {
			errs = append(errs, os.Remove(filepath.Join(e.dir(), entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// hasContainer says whether containerd's CRI keeps a container of that id; a sandbox is none.
func (c Config) hasContainer(id string) bool {
	_, err := os.Stat(filepath.Join(c.Root, "io.containerd.grpc.v1.cri", "containers", id))
	return err == nil
}

// Follow keeps the ends of containers that containerd tells of, until ctx ends or containerd does. It waits for a
// containerd that is still starting.
func (e *Exits) Follow(ctx context.Context) error {
	conn, err := dial(e.config.Socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := eventservice.NewEventsClient(conn).Subscribe(ctx, &eventservice.SubscribeRequest{Filters: []string{
		`namespace==` + criNamespace + `,topic=="/tasks/exit"`,
		`namespace==` + criNamespace + `,topic=="/containers/delete"`,
	}}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("follow the events of containerd at %q: %w", e.config.Socket(), err)
	}
	for {
		event, err := stream.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow the events of containerd at %q: %w", e.config.Socket(), err)
		}
		if err := e.take(event); err != nil {
			e.logger.Warn("an event of containerd is not understood", "topic", event.Topic, "error", err)
		}
	}
}

// take keeps what one event tells.
func (e *Exits) take(event *containerdtypes.Envelope) error {
	if event.Topic == "/tasks/exit" {
		var ended eventsapi.TaskExit
		if err := proto.Unmarshal(event.GetEvent().GetValue(), &ended); err != nil {
			return err
		}
		if ended.ID == ended.ContainerID { // else it is a command that was run in it
			e.note(ended.ContainerID, ended.ExitStatus, ended.ExitedAt.AsTime())
		}
		return nil
	}
	var deleted eventsapi.ContainerDelete
	if err := proto.Unmarshal(event.GetEvent().GetValue(), &deleted); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(e.dir(), filepath.Base(deleted.ID)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
