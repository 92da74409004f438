package containerd

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	containerdtypes "github.com/containerd/containerd/api/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// FuzzExitRecord reads an arbitrary file of how a container exited: it has a code and a time, or there is no record, and the next one is kept.
func FuzzExitRecord(f *testing.F) {
	f.Add([]byte(`{"code":137,"finished":1700000000000000000}`), uint32(1))
	f.Add([]byte("null"), uint32(1<<32-1))
	f.Add([]byte(`{}`), uint32(0))
	f.Add([]byte(`{"code":1e9`), uint32(255))
	f.Fuzz(func(t *testing.T, content []byte, code uint32) {
		e, err := NewExitRecords(ExitRecordsDeps{}, Config{Root: t.TempDir(), RunDir: t.TempDir()})
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(e.dir(), 0o700))
		require.NoError(t, os.WriteFile(e.file("c"), content, 0o600))
		before, finished, known := e.read("c")
		if known {
			var fields map[string]any
			require.NoError(t, json.Unmarshal(content, &fields))
			require.NotEmpty(t, fields, "a record without a code would be one of a success")
		}
		at := time.Unix(1700000000, 5)
		e.record("c", code, at)
		after, then, ok := e.read("c")
		require.True(t, ok)
		if known { // the first record stays
			require.Equal(t, before, after)
			require.True(t, then.Equal(finished))
			return
		}
		require.Equal(t, int32(code), after)
		require.True(t, then.Equal(at))
	})
}

// FuzzEvent receives arbitrary events of containerd: what is written and removed are files of records.
func FuzzEvent(f *testing.F) {
	add := func(message proto.Message, exit bool) {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		f.Add(data, exit)
	}
	add(&eventsapi.TaskExit{ContainerID: "c", ID: "c", ExitStatus: 3, ExitedAt: timestamppb.New(time.Unix(1, 0))}, true)
	add(&eventsapi.TaskExit{}, true)
	add(&eventsapi.ContainerDelete{ID: ".."}, false)
	add(&eventsapi.ContainerDelete{}, false)
	f.Fuzz(func(t *testing.T, event []byte, exit bool) {
		e, err := NewExitRecords(ExitRecordsDeps{}, Config{Root: t.TempDir(), RunDir: t.TempDir()})
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(e.dir(), 0o700))
		topic := "/containers/delete"
		if exit {
			topic = "/tasks/exit"
		}
		_ = e.onEvent(&containerdtypes.Envelope{Topic: topic, Event: &anypb.Any{Value: event}})
		entries, err := os.ReadDir(e.dir())
		require.NoError(t, err)
		for _, entry := range entries {
			require.True(t, entry.Type().IsRegular())
			_, _, known := e.read(entry.Name())
			require.True(t, known)
		}
		entries, err = os.ReadDir(e.config.RunDir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	})
}

// FuzzShimCommand reads an arbitrary command line of a process, which may be one in a Pod: what is taken for the id of a shim is the name of a file.
func FuzzShimCommand(f *testing.F) {
	config := Config{Root: "/var/lib/x", RunDir: "/run/x"}
	for _, id := range []string{"abc", "../../etc", "", ".."} {
		f.Add("/bin/containerd-shim-berth-v1\x00-namespace\x00k8s.io\x00-address\x00" + config.Socket() + "\x00-id\x00" + id)
	}
	f.Add("containerd-shim\x00-id")
	f.Fuzz(func(t *testing.T, command string) {
		if id := config.shimOfCommand(command); id != "" {
			require.NotContains(t, id, "/")
			require.NotContains(t, []string{".", ".."}, id)
			require.Contains(t, command, config.Socket())
		}
	})
}
