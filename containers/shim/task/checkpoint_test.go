package task

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
)

// fakeRunc is a program that notes its arguments in a file beside it, leaves a log as CRIU does, and fails if there is a file "fail", or if
// the machine does not see the container's root.
const fakeRunc = `#!/bin/sh
dir=$(dirname "$0")
echo "$@" > "$dir/arguments"
[ -e "$BUNDLE/rootfs/bin/sh" ] || { echo "no root"; exit 1; }
while [ "$1" != --work-path ]; do shift; done
echo "a file lock" > "$2/dump.log"
[ ! -e "$dir/fail" ] || { echo "criu failed: type NOTIFY errno 0"; exit 1; }
`

// TestCheckpoint is about how runc is called and its failure reported: what CRIU does is tested in a virtual machine.
func TestCheckpoint(t *testing.T) {
	f := newFixture(t)
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "runc"), []byte(fakeRunc), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("BUNDLE", filepath.Join(f.dir, "c"))
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	encoded, err := typeurl.MarshalAnyToProto(&options.CheckpointOptions{
		WorkPath: f.dir, OpenTcp: true, FileLocks: true, EmptyNamespaces: []string{"network"},
	})
	if err != nil {
		t.Fatal(err)
	}
	root := "--root " + filepath.Join(f.root, "test") + " checkpoint --image-path /images --work-path "
	for _, tt := range []struct {
		request *api.CheckpointTaskRequest
		want    string
	}{
		{&api.CheckpointTaskRequest{ID: "c", Path: "/images"}, root + "WORK --leave-running c"},
		{&api.CheckpointTaskRequest{ID: "c", Path: "/images", Options: encoded},
			root + f.dir + " --leave-running --tcp-established --file-locks --empty-ns network c"},
	} {
		if _, err := f.Checkpoint(t.Context(), tt.request); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(bin, "arguments"))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(string(data))
		if tt.request.Options == nil {
			if filepath.Dir(got[6]) != filepath.Join(f.dir, "c") {
				t.Errorf("work directory %q is not in the bundle", got[6])
			}
			if _, err := os.Stat(got[6]); !os.IsNotExist(err) {
				t.Errorf("the work directory is left: %v", err)
			}
			got[6] = "WORK"
		}
		if f.seesRoot(t, "c") {
			t.Error("the machine sees the container's root after a checkpoint")
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("runc is called with %q, want %q", got, tt.want)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "fail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = f.Checkpoint(t.Context(), &api.CheckpointTaskRequest{ID: "c", Path: "/images"})
	saved := filepath.Join(f.dir, "c", "criu-dump.log")
	if err == nil || !strings.Contains(err.Error(), "criu failed") || !strings.Contains(err.Error(), saved) {
		t.Errorf("a checkpoint that fails: %v", err)
	}
	if log, err := os.ReadFile(saved); string(log) != "a file lock\n" {
		t.Errorf("CRIU's log is not kept: %q %v", log, err)
	}
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "")
	if _, err := f.Checkpoint(t.Context(), &api.CheckpointTaskRequest{ID: "c", Path: "/images"}); !isKind(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a checkpoint of a container that has ended: %v", err)
	}
}
