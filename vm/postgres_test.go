//go:build vm

package vm

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	powerCuts   = flag.Int("power-cuts", 3, "how many times TestPostgresSurvivesPowerCuts cuts the power of its machine")
	integration = flag.String("integration-test", "", "the compiled tests of test/integration; they are compiled if it is empty")
	powerSeed   = flag.Uint64("power-seed", 0, "random seed of the moments of the power cuts (0: from the clock)")
)

const (
	// postgresShare is where the machine has the programs, and postgresDir the kubeconfig and the disks of the cluster.
	postgresShare, postgresDir = "/berth", "/var/lib/berth"
	// bootLimit is in seconds: without KVM a cluster starts in some minutes.
	bootLimit = 1200
	// numbersPerBoot are reserved for the commits between two power cuts.
	numbersPerBoot = 1_000_000
)

// berthUnit is the unit that docs/nodes.md recommends, so that the cluster comes up with the machine. It is tried until the machine has the
// host's directory with the programs, which comes after the boot.
const berthUnit = `[Unit]
Description=Kubernetes on this machine
After=network.target
StartLimitIntervalSec=0
[Service]
RestartSec=1
Environment=HOME=/root
ExecStart=` + postgresShare + `/berth --data-dir ` + postgresDir + ` up --eviction-hard=memory.available<0%,nodefs.available<0%,imagefs.available<0%
KillMode=process
TimeoutStopSec=120
Restart=always
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
[Install]
WantedBy=multi-user.target
`

// TestPostgresSurvivesPowerCuts cuts the power of a machine while a PostgreSQL commits, on a disk of class berth-loop of a cluster that is a
// service of the machine. What was acknowledged is logged by this process, which keeps its power. After each boot the cluster comes up by
// itself, and every acknowledged commit is there. At the end the disk's file system is clean.
func TestPostgresSurvivesPowerCuts(t *testing.T) {
	seed := *powerSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-power-seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m := startPostgresMachine(t)
	log := &commitLog{}
	for cut := range *powerCuts {
		before := log.count()
		ended := make(chan error, 1)
		go func() { ended <- log.follow(t.Context(), m, cut) }()
		require.Eventually(t, func() bool { return log.count() >= before+10 }, 10*time.Minute, 100*time.Millisecond,
			"PostgreSQL acknowledges nothing after %d power cuts; its client says:\n%s", cut, &log.errs)
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Millisecond) // a random moment is what this is about
		require.NoError(t, m.PowerCut())
		require.Error(t, <-ended, "the client ends with the machine")
		acknowledged := log.count()
		began := time.Now()
		require.NoError(t, m.Boot(t.Context()))
		found := log.check(t, m)
		t.Logf("power cut %d: %d commits acknowledged; checked %s after the boot: %s", cut, acknowledged, time.Since(began).Round(time.Second), found)
	}
	kubectl := postgresShare + "/berth --data-dir " + postgresDir + " kubectl "
	disk := output(t, m, "echo "+postgresDir+"/disks/volumes/*/disk.img")
	output(t, m, kubectl+"scale statefulset/pg --replicas=0 && "+kubectl+"wait --for=delete pod/pg-0 --timeout=10m")
	waitFor(t, m, 120, "! losetup -a | grep "+disk)
	t.Log(output(t, m, "e2fsck -f -n "+disk))
}

// startPostgresMachine boots the machine, and starts the cluster and the database.
func startPostgresMachine(t *testing.T) *Machine {
	share := t.TempDir()
	for _, name := range []string{
		"berth", "berth-controlplane", "berth-dns", "berth-isolate", "berth-supervisor", "kubectl", "containerd", "containerd-shim-runc-v2", "containerd-shim-berth-v1", "runc", "cni", "images",
		"thirdparty/commits",
	} {
		runHost(t, "cp", "-a", filepath.Join(*programs, name), share)
	}
	compiled := *integration
	if compiled == "" {
		compiled = filepath.Join(t.TempDir(), "integration.test")
		runHost(t, "go", "-C", "..", "test", "-c", "-vet=off", "-tags", "integration", "-o", compiled, "./test/integration")
	}
	runHost(t, "env", "-C", "../test/integration", compiled, "-test.run", "^TestWritePostgresFiles$", "-postgres-files", share)
	m := start(t, Options{Shares: []Share{{Dir: share, Path: postgresShare}}, Name: "node", MemoryMiB: 4096})
	require.NoError(t, m.Run(t.Context(), "cat > /etc/systemd/system/berth.service", IO{Stdin: strings.NewReader(berthUnit)}))
	output(t, m, "systemctl daemon-reload && systemctl -q enable --now berth")
	waitFor(t, m, bootLimit, postgresShare+"/berth --data-dir "+postgresDir+" images import "+postgresShare+"/debian.tar")
	waitFor(t, m, bootLimit, postgresShare+"/berth --data-dir "+postgresDir+" kubectl apply -f "+postgresShare+"/postgres.yaml")
	waitFor(t, m, bootLimit, postgresShare+"/berth --data-dir "+postgresDir+" kubectl wait pod/pg-0 --for=condition=Ready --timeout=5s")
	return m
}

// databaseURL is a script that sets the variable url.
const databaseURL = `url=postgres://postgres@$(` + postgresShare + `/berth --data-dir ` + postgresDir + ` kubectl get service pg-primary -o 'jsonpath={.spec.clusterIP}')/postgres?sslmode=disable\&connect_timeout=10; `

const commitsProgram = postgresShare + "/commits"

// commitLog has the acknowledged commits.
type commitLog struct {
	mu   sync.Mutex
	text bytes.Buffer

	errs tail // what the client says goes wrong
}

// Write implements io.Writer for what the client prints.
func (l *commitLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *commitLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte("\n"))
}

// complete returns the whole lines: a power cut may have cut the last one off, which then is removed.
func (l *commitLog) complete() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Truncate(bytes.LastIndexByte(l.text.Bytes(), '\n') + 1)
	return bytes.Clone(l.text.Bytes())
}

// follow runs the client in the machine until the machine has no power.
func (l *commitLog) follow(ctx context.Context, m *Machine, boot int) error {
	l.complete()
	script := databaseURL + fmt.Sprintf(`exec %s write -url "$url" -log - -timeout 1m -from %d`, commitsProgram, 1+boot*numbersPerBoot)
	return m.Run(ctx, script, IO{Stdout: l, Stderr: &l.errs})
}

// unknown is the exit code of a check that could not be made, because there is no database yet.
const unknown = 75

// check waits for the database, and checks that it has what was acknowledged, and that its tables and indexes are sound.
func (l *commitLog) check(t *testing.T, m *Machine) string {
	t.Helper()
	acknowledged := l.complete()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit*time.Second)
	defer cancel()
	for {
		var out, errs strings.Builder
		err := m.Run(ctx, databaseURL+commitsProgram+` check -deep -url "$url" -log -`,
			IO{Stdin: bytes.NewReader(acknowledged), Stdout: &out, Stderr: &errs})
		if err == nil {
			return strings.TrimSpace(out.String())
		}
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != unknown {
			require.NoError(t, err, "%s", &errs)
		}
		select {
		case <-ctx.Done():
			require.NoError(t, err, "there is no database: %s\n%s", &errs, l.explain(t, m))
		case <-time.After(2 * time.Second): // the machine starts
		}
	}
}

// explain returns why there is no database.
func (l *commitLog) explain(t *testing.T, m *Machine) string {
	var out strings.Builder
	_ = m.Run(t.Context(), postgresShare+"/berth --data-dir "+postgresDir+" explain pod pg-0; journalctl --no-pager -b -u berth | tail -n 40",
		IO{Stdout: &out, Stderr: &out})
	return out.String()
}
