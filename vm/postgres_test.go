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

// numbersPerBoot are reserved for the commits between two power cuts.
const numbersPerBoot = 1_000_000

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
	const kubectl = clusterBerth + "kubectl "
	disk := output(t, m, "echo "+clusterDir+"/disks/volumes/*/disk.img")
	output(t, m, kubectl+"scale statefulset/pg --replicas=0 && "+kubectl+"wait --for=delete pod/pg-0 --timeout=10m")
	waitFor(t, m, 120, "! losetup -a | grep "+disk)
	t.Log(output(t, m, "e2fsck -f -n "+disk))
}

// startPostgresMachine boots the machine, and starts the cluster and the database.
func startPostgresMachine(t *testing.T) *Machine {
	share := t.TempDir()
	copyClusterPrograms(t, share, "berth", "thirdparty/commits")
	compiled := *integration
	if compiled == "" {
		compiled = filepath.Join(t.TempDir(), "integration.test")
		runHost(t, "go", "-C", "..", "test", "-c", "-vet=off", "-tags", "integration", "-o", compiled, "./test/integration")
	}
	runHost(t, "env", "-C", "../test/integration", compiled, "-test.run", "^TestWritePostgresFiles$", "-postgres-files", share)
	m := startCluster(t, share, 4096)
	untilCluster(t, m, "images import "+clusterShare+"/debian.tar", "kubectl apply -f "+clusterShare+"/postgres.yaml",
		"kubectl wait pod/pg-0 --for=condition=Ready --timeout=5s")
	return m
}

// databaseURL is a script that sets the variable url.
const databaseURL = `url=postgres://postgres@$(` + clusterBerth + `kubectl get service pg-primary -o 'jsonpath={.spec.clusterIP}')/postgres?sslmode=disable\&connect_timeout=10; `

const commitsProgram = clusterShare + "/commits"

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
	ctx, cancel := context.WithTimeout(t.Context(), clusterStart*time.Second)
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
	_ = m.Run(t.Context(), clusterBerth+"explain pod pg-0; journalctl --no-pager -b -u berth | tail -n 40",
		IO{Stdout: &out, Stderr: &out})
	return out.String()
}
