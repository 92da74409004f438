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

// ExitRecords keeps how containers ended where containerd would forget it. A containerd that starts takes a container that
// ended while it was away for the rest of a failed start, deletes it in its shim and tells exit code 255, "Unknown";
// and one that dies between deleting an ended container and writing down its end loses it, too. The shims know, so they
// are asked before containerd starts ([Exits.Recover]) and until it has looked at all ([Exits.FinishRecovery]); while it runs, its
// own events tell ([Exits.Watch]). What is known lies in files, because whoever learned it may be killed next.
// It is safe for concurrent use.
type ExitRecords struct {
	config Config
	logger *slog.Logger

	mu        sync.Mutex // guards below
	recovered chan struct{}
	shims     *shimWatch // of the shims, between Begin and Settle
}

// exitRecord is what a record holds.
type exitRecord struct {
	Code int32 `json:"code"`
	// Finished is in nanoseconds since 1970, by the shim's clock.
	Finished int64 `json:"finished"`
}

// NewExitRecords makes the store of one cluster's containerd; of config, Root and RunDir are needed. logger may be nil.
func NewExitRecords(config Config, logger *slog.Logger) *ExitRecords {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	settled := make(chan struct{})
	close(settled)
	return &ExitRecords{config: config, logger: logger, recovered: settled}
}

func (e *ExitRecords) dir() string { return filepath.Join(e.config.RunDir, "exits") }

// Exit tells how a container ended, if that is known. It waits while the shims are still being asked.
func (e *ExitRecords) Exit(ctx context.Context, id string) (code int32, finished time.Time, ok bool) {
	if code, finished, ok = e.read(id); ok {
		return code, finished, true
	}
	e.mu.Lock()
	settled := e.recovered
	e.mu.Unlock()
	select {
	case <-settled:
		return e.read(id)
	case <-ctx.Done():
		return 0, time.Time{}, false
	}
}

func (e *ExitRecords) read(id string) (code int32, finished time.Time, ok bool) {
	data, err := os.ReadFile(filepath.Join(e.dir(), filepath.Base(id)))
	var known exitRecord
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

// record keeps how a container ended. It does so once: of a shim that dies after its container, containerd tells another
// end, which it has made up.
func (e *ExitRecords) record(id string, code uint32, finished time.Time) {
	if _, _, known := e.read(id); known {
		return
	}
	data, err := json.Marshal(exitRecord{Code: int32(code), Finished: finished.UnixNano()})
	if err == nil {
		err = atomicfile.WriteVolatile(filepath.Join(e.dir(), filepath.Base(id)), data, 0o600)
	}
	if err != nil {
		e.logger.Warn("keeping how a container ended failed", "container", id, "error", err)
	}
}

// Recover asks the shims how their containers fare, before containerd starts. An error says why nothing can be kept; a
// shim that does not answer is logged, and its containers' ends are then what containerd makes of them.
func (e *ExitRecords) Recover(ctx context.Context) error {
	if err := os.MkdirAll(e.dir(), 0o700); err != nil {
		return fmt.Errorf("keep how containers end: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shims != nil { // containerd died before it was ready
		e.shims.stop()
	} else {
		e.recovered = make(chan struct{})
	}
	if err := e.prune(); err != nil {
		e.logger.Warn("forgetting ends of containers that are gone failed", "error", err)
	}
	e.shims = watchShims(ctx, e.config, e.record, e.logger)
	return nil
}

// FinishRecovery ends what Begin began, once containerd is ready: it has looked at every container, and follows them itself.
func (e *ExitRecords) FinishRecovery(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shims == nil {
		return
	}
	e.shims.finish(ctx)
	e.shims = nil
	close(e.recovered)
}

// prune removes the records of containers that are gone.
func (e *ExitRecords) prune() error {
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

// Watch keeps the ends of containers that containerd tells of, until ctx ends or containerd does. It waits for a
// containerd that is still starting.
func (e *ExitRecords) Watch(ctx context.Context) error {
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
		if err := e.onEvent(event); err != nil {
			e.logger.Warn("an event of containerd is not understood", "topic", event.Topic, "error", err)
		}
	}
}

// onEvent keeps what one event tells.
func (e *ExitRecords) onEvent(event *containerdtypes.Envelope) error {
	if event.Topic == "/tasks/exit" {
		var ended eventsapi.TaskExit
		if err := proto.Unmarshal(event.GetEvent().GetValue(), &ended); err != nil {
			return err
		}
		if ended.ID == ended.ContainerID { // else it is a command that was run in it
			e.record(ended.ContainerID, ended.ExitStatus, ended.ExitedAt.AsTime())
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
