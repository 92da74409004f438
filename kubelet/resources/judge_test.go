//go:build judge

package resources_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	judgePath  = flag.String("judge", "", "the program resourcejudge of conformance/")
	judgeLives = flag.Int64("judge-lives", 400, "how many random machines to compare")
	judgeSeed  = flag.Int64("judge-seed", 0, "the first random machine")
	// judgeRecord keeps what upstream has decided for the test that repeats it.
	judgeRecord = flag.Bool("judge-record", false, "write "+recordedDecisions)
)

// TestDecisionsEqualUpstreams has upstream's managers and ours decide on the same random Pods, on the same random machines. Both admit
// the same Pods for the same reasons, and give them the same CPUs and memory. From time to time each goes on with the state files of
// the other.
//
// Faults of upstream's are left out: states of its own with which it does not start again. Where CPUs are strictly reserved and containers
// have all others, it takes the empty shared pool for a damaged file. Where a container has memory of a NUMA node that gives memory together
// with others, too, as its CPUs are there, upstream takes the nodes' groups for those of another machine. And a Pod that it refuses after
// it gave its first container such memory leaves that node in no group.
func TestDecisionsEqualUpstreams(t *testing.T) {
	require.NotEmpty(t, *judgePath, "run `make judge-resources`")
	admissions, refusals, faults := 0, 0, 0
	var record strings.Builder
	for seed := *judgeSeed; seed < *judgeSeed+*judgeLives; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newComparison(t, seed, startJudge(t))
			c.run(comparedSteps)
			fmt.Fprintln(&record, seed, c.sum())
			admissions, refusals, faults = admissions+c.admissions, refusals+c.refusals, faults+c.faults
		})
	}
	if *judgeRecord && !t.Failed() {
		require.NoError(t, os.WriteFile(recordedDecisions, []byte(record.String()), 0o644))
	}
	t.Logf("%d admissions, %d of them refused; %d faults of upstream's", admissions, refusals, faults)
}

// judge is the running program.
type judge struct {
	in  io.Writer
	out *bufio.Reader
}

func startJudge(t *testing.T) *judge {
	cmd := exec.Command(*judgePath)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	return &judge{in: in, out: bufio.NewReader(out)}
}

func (j *judge) ask(t *testing.T, r judgeRequest) judgeResponse {
	require.NoError(t, json.NewEncoder(j.in).Encode(r))
	line, err := j.out.ReadBytes('\n')
	require.NoError(t, err)
	var out judgeResponse
	require.NoError(t, json.Unmarshal(line, &out))
	require.Empty(t, out.Error)
	return out
}
