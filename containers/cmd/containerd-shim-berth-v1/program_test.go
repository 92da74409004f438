package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// foreign are the beginnings of packages that the program does without: it is the first of each process of a container, and its size counts
// each time. What it may have of gRPC are the codes of errors.
var foreign = []string{"k8s.io/", "github.com/containerd/containerd/v2/client", "google.golang.org/grpc/internal/transport", "github.com/checkpoint-restore/", "net/http"}

// TestProgramHasNoClients finds packages for clients, CRI and CRIU in the program, built as build.sh does.
func TestProgramHasNoClients(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "seccomp runc_nocriu no_grpc osusergo netgo", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		for _, prefix := range foreign {
			if strings.HasPrefix(path, prefix) {
				t.Errorf("the program has package %s", path)
			}
		}
	}
}

// BenchmarkStart is the time from the start of a shim's program until its socket is open and the program that containerd waits for has ended,
// of both shims of bin. It needs root.
func BenchmarkStart(b *testing.B) {
	for _, name := range []string{"containerd-shim-berth-v1", "containerd-shim-runc-v2"} {
		program, err := filepath.Abs("../../../bin/" + name)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := os.Stat(program); err != nil || os.Geteuid() != 0 {
			b.Skip("needs root and make build")
		}
		b.Run(name, func(b *testing.B) {
			dir, err := os.MkdirTemp("/run", "shim-") // short, for the socket
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			for i := 0; b.Loop(); i++ {
				address := start(b, program, dir, fmt.Sprint("c", i))
				b.StopTimer()
				shutdown(b, address)
				b.StartTimer()
			}
		})
	}
}

// start starts a shim and returns its address.
func start(b *testing.B, program, dir, id string) string {
	b.StopTimer()
	bundle := filepath.Join(dir, id)
	if err := os.Mkdir(bundle, 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion": "1.2.0"}`), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(bundle, "log"), 0o600); err != nil {
		b.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(bundle, "log"), os.O_RDWR, 0) // both shims open it for writing
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = log.Close() })
	params, err := proto.Marshal(&bootstrap.BootstrapParams{
		InstanceID: id, Namespace: "bench", ContainerdTtrpcAddress: filepath.Join(dir, "none.ttrpc"),
		ContainerdGrpcAddress: filepath.Join(dir, "none"), SocketDir: proto.String(filepath.Join(dir, "s")),
	})
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(program, "-namespace", "bench", "-address", filepath.Join(dir, "none"), "-publish-binary", "/bin/true", "-id", id, "start")
	cmd.Dir, cmd.Stdin = bundle, bytes.NewReader(params)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "TTRPC_ADDRESS="+filepath.Join(dir, "none.ttrpc")) // as containerd does
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	b.StartTimer()
	if err := cmd.Run(); err != nil {
		b.Fatalf("%v: %s", err, problem.String())
	}
	var result bootstrap.BootstrapResult
	if err := proto.Unmarshal(out.Bytes(), &result); err != nil {
		b.Fatal(err)
	}
	return strings.TrimPrefix(result.GetAddress(), "unix://")
}

// shutdown ends a shim. It may end before it responds.
func shutdown(b *testing.B, address string) {
	conn, err := net.Dial("unix", address)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	_, _ = task.NewTTRPCTaskClient(ttrpc.NewClient(conn)).Shutdown(b.Context(), &task.ShutdownRequest{Now: true})
}
