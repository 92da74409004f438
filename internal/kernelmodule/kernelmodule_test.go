package kernelmodule

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsMissing(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string) string {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	sys, list := filepath.Join(dir, "sys"), write("modules.builtin", "kernel/fs/built_in.ko\n")
	feature := write("feature", "")
	write("sys/loaded/refcnt", "1")
	none := filepath.Join(dir, "none")
	for want, modules := range map[bool][]Module{
		false: {{Name: "loaded"}, {Name: "loaded", Feature: none}, {Name: "built_in"}, {Name: "x", Feature: feature}, {Name: "x", Filesystem: "proc"}},
		true:  {{Name: "x"}, {Name: "in"}, {Name: "x", Feature: none}, {Name: "x", Filesystem: "xproc"}},
	} {
		for _, m := range modules {
			require.Equal(t, want, m.isMissing(sys, list), "%+v", m)
		}
	}
	require.False(t, Module{Name: "x"}.isMissing(sys, none), "it cannot be found out")
	require.False(t, Module{Name: "x", Feature: "/proc/self/status"}.IsMissing())
	require.True(t, Module{Name: "x", Feature: none}.IsMissing())
}

// TestModprobe runs a modprobe that knows one module.
func TestModprobe(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$*\" >> " + dir + "/calls\ncase \"$*\" in *good) exit 0;; esac\necho \"FATAL: Module not found\" >&2\nexit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "modprobe"), []byte(script), 0o755))
	t.Setenv("PATH", dir)
	good, bad := Module{Name: "good"}, Module{Name: "bad"}
	require.NoError(t, good.CheckLoadable(t.Context()))
	require.NoError(t, good.Load(t.Context()))
	require.EqualError(t, bad.CheckLoadable(t.Context()), "modprobe bad: exit status 1: FATAL: Module not found")
	require.EqualError(t, bad.Load(t.Context()), "modprobe bad: exit status 1: FATAL: Module not found")
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	require.NoError(t, err)
	require.Equal(t, "--dry-run good\ngood\n--dry-run bad\nbad\n", string(calls))
	t.Setenv("PATH", t.TempDir())
	require.EqualError(t, good.Load(t.Context()), "modprobe good: there is no program modprobe")
}
