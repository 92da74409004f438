package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/container"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is a log in the runtime's format: one line in three parts, one of the other stream, one torn.
const sample = `2026-01-01T00:00:01.000000001Z stdout F one
2026-01-01T00:00:02Z stderr F oops
2026-01-01T00:00:03.5Z stdout P two-
2026-01-01T00:00:03.6Z stdout P and-
2026-01-01T00:00:03.7Z stdout F a half
2026-01-01T00:00:04Z stdout F 
garbage
2026-01-01T00:00:05+01:00 stdout F last
`

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		opts     Options
		out, err string
	}{
		"all": {Options{}, "one\ntwo-and-a half\n\ngarbage\nlast\n", "oops\n"},
		"timestamps": {Options{Timestamps: true}, "2026-01-01T00:00:01.000000001Z one\n2026-01-01T00:00:03.500000000Z two-and-a half\n" +
			"2026-01-01T00:00:04.000000000Z \ngarbage\n2026-01-01T00:00:05.000000000+01:00 last\n", "2026-01-01T00:00:02.000000000Z oops\n"},
		"tail 1":        {Options{TailLines: ptr.To[int64](1)}, "last\n", ""},
		"tail 4":        {Options{TailLines: ptr.To[int64](4)}, "two-and-a half\n\ngarbage\nlast\n", ""},
		"tail 5":        {Options{TailLines: ptr.To[int64](5)}, "two-and-a half\n\ngarbage\nlast\n", "oops\n"},
		"tail 6":        {Options{TailLines: ptr.To[int64](6)}, "one\ntwo-and-a half\n\ngarbage\nlast\n", "oops\n"},
		"tail 99":       {Options{TailLines: ptr.To[int64](99)}, "one\ntwo-and-a half\n\ngarbage\nlast\n", "oops\n"},
		"tail 0":        {Options{TailLines: ptr.To[int64](0)}, "", ""},
		"since":         {Options{Since: time.Date(2026, 1, 1, 0, 0, 3, 600000000, time.UTC)}, "and-a half\n\ngarbage\n", ""},
		"limit":         {Options{LimitBytes: ptr.To[int64](6)}, "one\n", "oo"},
		"limit exactly": {Options{LimitBytes: ptr.To[int64](4)}, "one\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.NoError(t, Read(t.Context(), write(t, sample), c.opts, &stdout, &stderr))
			require.Equal(t, c.out, stdout.String())
			require.Equal(t, c.err, stderr.String())
		})
	}
	var only bytes.Buffer
	require.NoError(t, Read(t.Context(), write(t, sample), Options{}, nil, &only))
	require.Equal(t, "oops\n", only.String())
	require.ErrorIs(t, Read(t.Context(), "/does/not/exist", Options{}, nil, nil), os.ErrNotExist)
	only.Reset()
	require.NoError(t, Read(t.Context(), write(t, "2026-01-01T00:00:01Z stdout F not com"), Options{}, &only, nil))
	require.Equal(t, "not com", only.String())
}

// TestTailAgainstASimpleVersion compares the backward search with reading and counting all lines, for files larger than
// a block.
func TestTailAgainstASimpleVersion(t *testing.T) {
	for _, lines := range []int{0, 1, 2, 400, 1000} {
		for _, size := range []int{0, 1, 97} {
			var content strings.Builder
			var wanted []string
			for i := range lines {
				text := fmt.Sprintf("%d-%s", i, strings.Repeat("x", size))
				if i%3 == 0 {
					content.WriteString("2026-01-01T00:00:01Z stdout P part-\n")
					text = "part-" + text
				}
				fmt.Fprintf(&content, "2026-01-01T00:00:01Z stdout F %s\n", strings.TrimPrefix(text, "part-"))
				wanted = append(wanted, text+"\n")
			}
			path := write(t, content.String())
			for _, n := range []int{1, 2, 3, 150, 399, 400, 401, 5000} {
				var got bytes.Buffer
				require.NoError(t, Read(t.Context(), path, Options{TailLines: ptr.To(int64(n))}, &got, nil))
				require.Equal(t, strings.Join(wanted[max(len(wanted)-n, 0):], ""), got.String(), "%d of %d lines", n, lines)
			}
		}
	}
}

// flow is a writer that lets a test wait for output.
type flow chan string

func (f flow) Write(p []byte) (int, error) {
	f <- string(p)
	return len(p), nil
}

func line(text string) string { return "2026-01-01T00:00:01Z stdout F " + text + "\n" }

func add(t *testing.T, path, content string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = file.WriteString(content)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

func TestFollow(t *testing.T) {
	path := write(t, line("first"))
	done, out, ended := make(chan struct{}), make(flow), make(chan error, 1)
	go func() { ended <- Read(t.Context(), path, Options{Follow: true, Done: done}, out, nil) }()
	require.Equal(t, "first\n", <-out)
	whole := line("second")
	add(t, path, whole[:10])
	add(t, path, whole[10:])
	require.Equal(t, "second\n", <-out)

	// Rotation: the old file is renamed, and the runtime continues writing to it until it opens the new one.
	require.NoError(t, os.Rename(path, path+".1"))
	add(t, path, "")
	add(t, path+".1", line("late"))
	require.Equal(t, "late\n", <-out)
	add(t, path+".1", line("later"))
	add(t, path, line("new"))
	require.Equal(t, "later\n", <-out)
	require.Equal(t, "new\n", <-out)

	add(t, path, line("end"))
	close(done)
	require.Equal(t, "end\n", <-out)
	require.NoError(t, <-ended)
}

func TestFollowAfterTheEnd(t *testing.T) {
	done := make(chan struct{})
	close(done)
	var out bytes.Buffer
	require.NoError(t, Read(t.Context(), write(t, line("a")+"torn"), Options{Follow: true, Done: done}, &out, nil))
	require.Equal(t, "a\ntorn", out.String())
	out.Reset()
	require.NoError(t, Read(t.Context(), write(t, line("a")), Options{Follow: true, Done: done, TailLines: new(int64)}, &out, nil))
	require.Empty(t, out.String())
}

func TestFollowEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, ended := make(flow), make(chan error, 1)
	path := write(t, line("a"))
	go func() { ended <- Read(ctx, path, Options{Follow: true}, out, nil) }()
	<-out
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

type broken struct{}

var errBroken = errors.New("pipe is broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestReaderGoesAway(t *testing.T) {
	require.ErrorIs(t, Read(t.Context(), write(t, sample), Options{Follow: true}, broken{}, nil), errBroken)
}

func TestFromPodLogOptions(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC)
	got, err := FromPodLogOptions(&corev1.PodLogOptions{SinceSeconds: ptr.To[int64](10), Follow: true, Timestamps: true}, now)
	require.NoError(t, err)
	require.Equal(t, Options{Since: now.Add(-10 * time.Second), Follow: true, Timestamps: true}, got)
	got, err = FromPodLogOptions(&corev1.PodLogOptions{SinceTime: &metav1.Time{Time: now}}, now)
	require.NoError(t, err)
	require.Equal(t, now, got.Since)
	got, err = FromPodLogOptions(&corev1.PodLogOptions{SinceSeconds: ptr.To[int64](math.MaxInt64)}, now)
	require.NoError(t, err)
	require.Equal(t, 1733, got.Since.Year(), "as far back as a duration reaches")
	for fault, o := range map[string]corev1.PodLogOptions{
		"at most one":    {SinceSeconds: ptr.To[int64](1), SinceTime: &metav1.Time{}},
		"sinceSeconds 0": {SinceSeconds: new(int64)},
		"tailLines -1":   {TailLines: ptr.To[int64](-1)},
		"limitBytes 0":   {LimitBytes: new(int64)},
	} {
		_, err := FromPodLogOptions(&o, now)
		require.ErrorContains(t, err, fault)
	}
}

func TestPick(t *testing.T) {
	ended := func(id string) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ContainerID: id}
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	for name, c := range map[string]struct {
		status   corev1.ContainerStatus
		previous bool
		want     string
		fault    string
	}{
		"running":            {corev1.ContainerStatus{ContainerID: "r", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, false, "r", ""},
		"ended":              {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: ended("e")}}, false, "e", ""},
		"crash loop":         {corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: corev1.ContainerState{Terminated: ended("l")}}, false, "l", ""},
		"previous":           {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: corev1.ContainerState{Terminated: ended("l")}}, true, "l", ""},
		"no previous":        {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, true, "", `previous terminated container "c" in pod "p" not found`},
		"start failed, then": {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: ended("")}, LastTerminationState: corev1.ContainerState{Terminated: ended("l")}}, false, "l", ""},
		"start failed":       {corev1.ContainerStatus{State: corev1.ContainerState{Terminated: ended("")}}, false, "", "is terminated"},
		"creating":           {corev1.ContainerStatus{State: waiting("ContainerCreating")}, false, "", "waiting to start: ContainerCreating"},
		"pull fails":         {corev1.ContainerStatus{State: waiting("ErrImagePull")}, false, "", "image can't be pulled"},
		"pull backs off":     {corev1.ContainerStatus{State: waiting("ImagePullBackOff")}, false, "", "trying and failing to pull image"},
		"nothing known":      {corev1.ContainerStatus{}, false, "", "no logs yet"},
	} {
		t.Run(name, func(t *testing.T) {
			c.status.Name = "c"
			got, err := ContainerIDFor("p", &corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{c.status}}, "c", c.previous)
			if c.fault != "" {
				require.ErrorContains(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
	_, err := ContainerIDFor("p", &corev1.PodStatus{}, "c", false)
	require.EqualError(t, err, `container "c" in pod "p" is not available`)
}

func TestTerminationMessage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	secret := file("secret", "secret")
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "link")))
	log := ""
	for i := range 100 {
		log += line(fmt.Sprint(i))
	}
	log = file("0.log", log)
	longLog := file("1.log", line(strings.Repeat("y", 5000)))
	fallback := corev1.TerminationMessageFallbackToLogsOnError
	for name, c := range map[string]struct {
		state   container.State
		exit    int32
		runtime string
		file    string
		policy  corev1.TerminationMessagePolicy
		log     string
		want    string
	}{
		"file":                     {container.StateExited, 0, "", file("m", "bye"), "", log, "bye"},
		"with the runtime's words": {container.StateExited, 0, "oh", file("m", "bye"), "", log, "oh: bye"},
		"runtime's words alone":    {container.StateExited, 0, "oh", file("e", ""), "", log, "oh"},
		"still running":            {container.StateRunning, 0, "", file("m", "bye"), "", log, ""},
		"no file":                  {container.StateExited, 1, "", filepath.Join(dir, "none"), "", log, ""},
		"long file":                {container.StateExited, 0, "", file("long", strings.Repeat("a", 10)+strings.Repeat("b", 4096)), "", log, strings.Repeat("b", 4096)},
		"not text":                 {container.StateExited, 0, "", file("bin", "a\xffb"), "", log, "a\uFFFDb"},
		"link":                     {container.StateExited, 0, "", filepath.Join(dir, "link"), "", log, "Error on reading termination log"},
		"directory":                {container.StateExited, 0, "", dir, "", log, "Error on reading termination log"},
		"fallback":                 {container.StateExited, 1, "", file("e", ""), fallback, longLog, strings.Repeat("y", 2047) + "\n"},
		"fallback not needed":      {container.StateExited, 1, "", file("m", "bye"), fallback, log, "bye"},
		"fallback not on success":  {container.StateExited, 0, "", file("e", ""), fallback, log, ""},
		"fallback without a log":   {container.StateExited, 1, "", file("e", ""), fallback, "/none", "Error on reading termination message from logs"},
	} {
		t.Run(name, func(t *testing.T) {
			got := TerminationMessage(t.Context(), &container.ContainerStatus{
				State: c.state, ExitCode: c.exit, Message: c.runtime, LogPath: c.log,
				TerminationMessagePath: "dev/log", TerminationMessagePolicy: c.policy,
				Mounts: []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: secret}, {ContainerPath: "/dev/log", HostPath: c.file}},
			})
			if strings.HasPrefix(c.want, "Error on") {
				require.True(t, strings.HasPrefix(got, c.want), got)
				require.NotContains(t, got, "secret")
				return
			}
			require.Equal(t, c.want, got)
		})
	}
	all := TerminationMessage(t.Context(), &container.ContainerStatus{
		State: container.StateExited, ExitCode: 1, LogPath: log, TerminationMessagePolicy: fallback})
	require.Equal(t, 80, strings.Count(all, "\n"))
	require.True(t, strings.HasPrefix(all, "20\n"))
}
