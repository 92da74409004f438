package progress_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/up/progress"
)

func TestProgressInAPipeIsPlain(t *testing.T) {
	var out strings.Builder
	p := progress.New(&out, nil, clock.RealClock{})
	p.Starting("etcd")
	p.Ready("etcd", "3.6")
	p.Failed("containerd", errors.New("no runc"))
	p.Printf("done")
	require.NotContains(t, out.String(), "\x1b")
	require.Regexp(t, `(?m)^etcd +starting\netcd +ready +\d+\.\d\d s  3\.6\ncontainerd +failed +\d+\.\d\d s  no runc\ndone\n$`, out.String())
}

func TestProgressOnATerminalRedrawsItsBlock(t *testing.T) {
	var out strings.Builder
	p := progress.New(&out, func() int { return 80 }, clock.RealClock{})
	p.Starting("etcd")
	p.Starting("kubelet")
	p.Ready("etcd", "")
	require.Equal(t, 1, strings.Count(out.String(), "\x1b[1A\x1b[J"), "each change goes up over the block")
	require.Equal(t, 1, strings.Count(out.String(), "\x1b[2A\x1b[J"))
	p.Printf("below")
	p.Ready("kubelet", "")
	require.NotContains(t, out.String()[strings.Index(out.String(), "below"):], "\x1b[2A", "what was said is not drawn over")
}

func TestProgressGoesUpOverWrappedLines(t *testing.T) {
	var out strings.Builder
	p := progress.New(&out, func() int { return 40 }, clock.RealClock{})
	p.Starting("etcd")
	p.Ready("etcd", "")   // 46 columns, which take two rows
	p.Starting("kubelet") // goes up over these
	require.Contains(t, out.String(), "\x1b[2A\x1b[J")
}
