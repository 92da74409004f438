package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fixtureTime is the time of the source in the tests.
var fixtureTime = time.Date(2026, time.March, 4, 5, 6, 7, 0, time.UTC)

// newFixture returns the configuration of packages whose programs are short scripts.
func newFixture(t *testing.T, version string) Config {
	t.Helper()
	dir := t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
	}
	for _, name := range append(helpers(), "berth") {
		write("bin/"+name, "#!/bin/sh\necho "+name+" "+version+"\n", 0o755)
	}
	for _, name := range []string{"man/berth.1", "man/berth-up.1", "berth.bash", "berth.zsh", "berth.fish", "LICENSE"} {
		write(name, name+"\n", 0o644)
	}
	write("config.yaml", "\n# a port\n#api-port: 6443\n", 0o644)
	parsed, err := ParseVersion(version, fixtureTime)
	require.NoError(t, err)
	return Config{
		Bin: filepath.Join(dir, "bin"), Reference: dir, Documents: []string{filepath.Join(dir, "LICENSE")}, Version: parsed, Arch: "amd64",
		Time: fixtureTime, Out: filepath.Join(dir, "out"),
	}
}

// requireProgram returns the path of a program of the machine, or skips the test.
func requireProgram(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("install %s to run this test", name)
	}
	return path
}

// output runs a program and returns what it writes.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	data, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, data)
	return string(data)
}
