package server_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/server"
)

// journalctl is a journalctl program that knows one service and prints its arguments. As the real one, it fails if no entry has the pattern,
// or if there was no such boot.
const journalctl = `#!/bin/sh
if [ "$1" = --field=_SYSTEMD_UNIT ]; then echo known.service; exit; fi
for arg; do echo "<$arg>"; done
case "$*" in
*--grep=absent*) exit 1;;
*--boot=-9*) exit 1;;
esac
`

func withLogs(t *testing.T, query bool) *fixture {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "journalctl")
	logs := filepath.Join(dir, "log")
	require.NoError(t, os.WriteFile(program, []byte(journalctl), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "nested"), 0o700))
	for name, content := range map[string]string{"plain.log": "of plain", "nested/nested.log": "of nested", "../outside": "top secret"} {
		require.NoError(t, os.WriteFile(filepath.Join(logs, name), []byte(content), 0o600))
	}
	require.NoError(t, os.Symlink("../outside", filepath.Join(logs, "link.log")))
	return start(t, func(c *server.Config, _ *server.Deps) { c.LogDir, c.LogQuery, c.Journalctl = logs, query, program })
}

func TestLogQuery(t *testing.T) {
	f := withLogs(t, true)
	for query, want := range map[string][]string{
		"query=known": {"<--unit=known>"},
		"query=known&tailLines=5&boot=-1&pattern=" + url.QueryEscape("a|--x"): {"<--lines=5>", "<--boot=-1>", "<--grep=a|--x>"},
		"query=known&sinceTime=2020-01-02T03:04:05%2B01:00&untilTime=2020-02-02T03:04:05Z": {
			"<--since=2020-01-02 02:04:05 UTC>", "<--until=2020-02-02 03:04:05 UTC>"},
		"query=known&boot=-9":                    {"error: journalctl failed: exit status 1"},
		"query=plain":                            {"of plain"},
		"query=nested":                           {"of nested"},
		"query=known&query=plain":                {"<--unit=known>", "of plain"},
		"query=plain&tailLines=1":                {"options do not apply to files"},
		"query=absent":                           {"neither the journal nor the log directory"},
		"query=link":                             {"neither the journal nor the log directory"},
		"query=" + url.QueryEscape("/plain.log"): {"of plain"},
	} {
		code, body := f.do(t, "admin", "GET", "/logs/?"+query)
		require.Equal(t, 200, code, body)
		for _, each := range want {
			require.Contains(t, body, each, query)
		}
		require.NotContains(t, body, "top secret")
	}
	for query, want := range map[string]int{
		"query=": 400, "query=a&sinceTime=yesterday": 400, "query=a&tailLines=many": 400,
		"tailLines=1": 406, "query=/a&query=/b": 406, "query=/a&query=b": 406, "query=/plain.log&boot=0": 406,
		"query=a&boot=1": 406, "query=a&tailLines=-1": 406, "query=a&tailLines=100001": 406, "query=--output": 406,
		"query=a%20b": 406, "query=a&pattern=(": 406, "query=/absent": 406, "query=/../outside": 406, "query=/link.log": 406,
		"query=a&sinceTime=2020-01-02T00:00:00Z&untilTime=2019-01-02T00:00:00Z": 406,
		"query=a&query=b&query=c&query=d&query=e":                               406,
	} {
		code, body := f.do(t, "admin", "GET", "/logs/?"+query)
		require.Equal(t, want, code, query+": "+body)
		require.NotContains(t, body, "top secret")
	}
	_, body := f.do(t, "admin", "GET", "/logs/?query=known&pattern=absent")
	require.Contains(t, body, "<--grep=absent>")
	require.NotContains(t, body, "error", "no entry has the pattern")
	code, _ := f.do(t, "admin", "GET", "/logs/plain.log?query=known")
	require.Equal(t, 406, code)
	code, body = f.do(t, "admin", "GET", "/logs/plain.log")
	require.Equal(t, 200, code)
	require.Equal(t, "of plain", body)
}

func TestLogQueryIsOffByDefault(t *testing.T) {
	f := withLogs(t, false)
	code, body := f.do(t, "admin", "GET", "/logs/?query=known")
	require.Equal(t, 200, code)
	require.Contains(t, body, "plain.log", "the list of files, as if nothing had been asked")
	require.NotContains(t, body, "--unit")
}

// TestContentionProfileIfConfigured makes goroutines wait for each other with and without contention profiling.
func TestContentionProfileIfConfigured(t *testing.T) {
	profiled := func(meet func(), name string, c server.Config) bool {
		f := start(t, func(config *server.Config, _ *server.Deps) {
			config.Profiling, config.ContentionProfiling = true, c.ContentionProfiling
		})
		meet()
		code, body := f.do(t, "admin", "GET", "/debug/pprof/block?debug=1")
		require.Equal(t, 200, code, body)
		return strings.Contains(body, "server_test."+name)
	}
	require.False(t, profiled(meetUnseen, "meetUnseen", server.Config{}))
	require.True(t, profiled(meetSeen, "meetSeen", server.Config{ContentionProfiling: true}))
}

// meetUnseen and meetSeen are two functions because the block profile of a process keeps each place forever.
func meetUnseen() { waitContention(func(met chan struct{}) { met <- struct{}{} }) }
func meetSeen()   { waitContention(func(met chan struct{}) { met <- struct{}{} }) }

// waitContention makes two goroutines wait for each other, both in frames of the caller.
func waitContention(with func(chan struct{})) {
	met := make(chan struct{})
	go with(met)
	<-met
}

// TestProfilerAndLogLevelAreSwitchedApart enables each of them alone, and then disables debugging with both enabled.
func TestProfilerAndLogLevelAreSwitchedApart(t *testing.T) {
	for _, c := range []struct {
		profiling, flags, disabled bool
		pprof, level               int
	}{
		{profiling: true, pprof: 200, level: 405}, {flags: true, pprof: 405, level: 200},
		{profiling: true, flags: true, disabled: true, pprof: 405, level: 405},
	} {
		f := start(t, func(config *server.Config, _ *server.Deps) {
			config.Profiling, config.DebugFlags, config.DisableDebugging = c.profiling, c.flags, c.disabled
		})
		code, body := f.do(t, "admin", "GET", "/debug/pprof/")
		require.Equal(t, c.pprof, code, body)
		code, body = f.send(t, "admin", "PUT", "/debug/flags/v", "0")
		require.Equal(t, c.level, code, body)
	}
}

// TestDisabledEndpoints disables logs and the profiler.
func TestDisabledEndpoints(t *testing.T) {
	f := start(t, func(c *server.Config, _ *server.Deps) { c.LogDir, c.Profiling = "", false })
	for path, want := range map[string]string{
		"/logs/": "logs endpoint is disabled.", "/logs/x": "logs endpoint is disabled.",
		"/debug/pprof/": "profiling endpoint is disabled.", "/debug/pprof/heap": "profiling endpoint is disabled.",
		"/debug/flags/v": "flags endpoint is disabled.",
	} {
		code, body := f.do(t, "admin", "GET", path)
		require.Equal(t, 405, code, path)
		require.Contains(t, body, want)
	}
}
