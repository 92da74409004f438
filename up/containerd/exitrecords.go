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

// ExitRecords records the exit codes of containers that containerd would lose. A containerd that starts treats a
// container that exited while it was down as the rest of a failed start, deletes it in its shim and reports exit code
// 255, "Unknown"; a containerd that dies between deleting an exited container and saving its exit code loses it, too. The
// shims know the exit codes, so [ExitRecords.Recover] reads them before containerd starts, until
// [ExitRecords.FinishRecovery]; while containerd runs, [ExitRecords.Watch] reads its events. The records are files,
// because this process may be killed at any time. It is safe for concurrent use.
type ExitRecords struct {
	config Config
	logger *slog.Logger

	mu        sync.Mutex // guards below
	recovered chan struct{}
	shims     *shimWatch // nil unless between Recover and FinishRecovery
}

// exitRecord is the content of a record's file.
type exitRecord struct {
	Code int32 `json:"code"`
	// Finished is in nanoseconds since 1970, by the shim's clock.
	Finished int64 `json:"finished"`
}

// ExitRecordsDeps are the dependencies of ExitRecords.
type ExitRecordsDeps struct {
	// Logger defaults to one that discards.
	Logger *slog.Logger
}

// NewExitRecords returns the records of one cluster's containerd. It uses Root and RunDir of config, which are required.
func NewExitRecords(deps ExitRecordsDeps, config Config) (*ExitRecords, error) {
	if config.Root == "" || config.RunDir == "" {
		return nil, errors.New("containerd: Config.Root and Config.RunDir are required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	recovered := make(chan struct{})
	close(recovered)
	return &ExitRecords{config: config, logger: deps.Logger, recovered: recovered}, nil
}

func (e *ExitRecords) dir() string { return filepath.Join(e.config.RunDir, "exits") }

// file is the record of a container.
func (e *ExitRecords) file(id string) string { return filepath.Join(e.dir(), filepath.Base(id)) }

// Exit returns how a container exited, if that is recorded. It waits during a recovery.
func (e *ExitRecords) Exit(ctx context.Context, id string) (code int32, finished time.Time, ok bool) {
	if code, finished, ok = e.read(id); ok {
		return code, finished, true
	}
	e.mu.Lock()
	recovered := e.recovered
	e.mu.Unlock()
	select {
	case <-recovered:
		return e.read(id)
	case <-ctx.Done():
		return 0, time.Time{}, false
	}
}

func (e *ExitRecords) read(id string) (code int32, finished time.Time, ok bool) {
	data, err := os.ReadFile(e.file(id))
	var known exitRecord
	if err == nil {
		known, err = parseExit(data)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.logger.Warn("failed to read container exit record", "container", id, "error", err)
		}
		return 0, time.Time{}, false
	}
	return known.Code, time.Unix(0, known.Finished), true
}

// parseExit reads the content of a record's file. A record without a code is not one of a success.
func parseExit(data []byte) (exitRecord, error) {
	var known struct {
		Code     *int32 `json:"code"`
		Finished *int64 `json:"finished"`
	}
	if err := json.Unmarshal(data, &known); err != nil {
		return exitRecord{}, err
	}
	if known.Code == nil || known.Finished == nil {
		return exitRecord{}, errors.New("it has no code or no time")
	}
	return exitRecord{Code: *known.Code, Finished: *known.Finished}, nil
}

// record records how a container exited. The first record stays: if a shim dies after its container, containerd reports
// another exit, which is made up.
func (e *ExitRecords) record(id string, code uint32, finished time.Time) {
	if _, _, known := e.read(id); known {
		return
	}
	data, err := json.Marshal(exitRecord{Code: int32(code), Finished: finished.UnixNano()})
	if err == nil {
		err = atomicfile.WriteVolatile(e.file(id), data, 0o600)
	}
	if err != nil {
		e.logger.Warn("failed to write container exit record", "container", id, "error", err)
	}
}

// Recover reads the containers' states from their shims before containerd starts. It returns an error if records cannot
// be written. It logs shims that do not respond; for their containers containerd's exit codes apply.
func (e *ExitRecords) Recover(ctx context.Context) error {
	if err := os.MkdirAll(e.dir(), 0o700); err != nil {
		return fmt.Errorf("create the directory of container exit records: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shims != nil { // containerd died before it was ready
		e.shims.stop()
	} else {
		e.recovered = make(chan struct{})
	}
	if err := e.prune(); err != nil {
		e.logger.Warn("failed to remove exit records of removed containers", "error", err)
	}
	e.shims = watchShims(ctx, e.config, e.record, e.logger)
	return nil
}

// FinishRecovery ends the recovery once containerd is ready: it has loaded every container and reports their exits.
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

// hasContainer reports whether containerd's CRI has a container of that id. A sandbox is not a container.
func (c Config) hasContainer(id string) bool {
	_, err := os.Stat(filepath.Join(c.Root, "io.containerd.grpc.v1.cri", "containers", id))
	return err == nil
}

// Watch records the exits of containers that containerd reports, and releases the shared memory of sandboxes that end, until ctx is
// done or containerd exits. It waits for a containerd that is still starting.
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
			e.logger.Warn("failed to process an event of containerd", "topic", event.Topic, "error", err)
		}
	}
}

// onEvent acts on the exit that an event reports.
func (e *ExitRecords) onEvent(event *containerdtypes.Envelope) error {
	if event.Topic == "/tasks/exit" {
		var ended eventsapi.TaskExit
		if err := proto.Unmarshal(event.GetEvent().GetValue(), &ended); err != nil {
			return err
		}
		if ended.ID != ended.ContainerID {
			return nil // the process is that of an exec
		}
		if !isContainerID(ended.ContainerID) {
			return fmt.Errorf("%q is no id of a container", ended.ContainerID)
		}
		e.record(ended.ContainerID, ended.ExitStatus, ended.ExitedAt.AsTime())
		_, err := e.config.releaseSharedMemory(ended.ContainerID) // a container that is no sandbox has none
		return err
	}
	var deleted eventsapi.ContainerDelete
	if err := proto.Unmarshal(event.GetEvent().GetValue(), &deleted); err != nil {
		return err
	}
	if !isContainerID(deleted.ID) {
		return fmt.Errorf("%q is no id of a container", deleted.ID)
	}
	err := os.Remove(e.file(deleted.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
