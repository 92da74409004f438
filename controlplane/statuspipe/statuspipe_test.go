package statuspipe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/controlplane/statuspipe"
)

func TestReportWritesTheDocumentedLine(t *testing.T) {
	fakeClock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	var out bytes.Buffer
	w := statuspipe.New(&out, fakeClock)

	fakeClock.SetTime(time.Unix(1001, 500_000_000))
	require.NoError(t, w.Report(statuspipe.Etcd, statuspipe.Ready, nil))
	require.NoError(t, w.Report(statuspipe.APIServer, statuspipe.Failed, errors.New("no \"port\"\nleft")))

	require.Equal(t, `{"component":"etcd","state":"ready","elapsedMs":1500}
{"component":"kube-apiserver","state":"failed","elapsedMs":1500,"error":"no \"port\"\nleft"}
`, out.String())
}

func TestConcurrentReportsStayWholeLines(t *testing.T) {
	var out bytes.Buffer
	w := statuspipe.New(&out, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { _ = w.Report(statuspipe.RBAC, statuspipe.Starting, nil) })
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 50)
	for _, line := range lines {
		var event statuspipe.Event
		require.NoError(t, json.Unmarshal([]byte(line), &event))
		require.Equal(t, statuspipe.RBAC, event.Component)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestReportNamesTheComponentItCouldNotReport(t *testing.T) {
	err := statuspipe.New(brokenPipe{}, nil).Report(statuspipe.Etcd, statuspipe.Ready, nil)
	require.ErrorContains(t, err, `"etcd"`)
	require.ErrorContains(t, err, "broken pipe")
}
