package resolvconf

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func testFiles(t *testing.T) Files {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "etc"), 0o755))
	return Files{Main: filepath.Join(dir, "etc/resolv.conf"), Resolved: filepath.Join(dir, "run/systemd/resolve/resolv.conf")}
}

func TestServersForOtherNetworks(t *testing.T) {
	for name, test := range map[string]struct {
		main, resolved string
		own, others    []string
	}{
		"plain":           {main: "nameserver 10.1.1.1\nnameserver fd00::1\n", own: []string{"10.1.1.1", "fd00::1"}, others: []string{"10.1.1.1", "fd00::1"}},
		"resolved's stub": {main: "nameserver 127.0.0.53\n", resolved: "nameserver 10.2.2.2\n", own: []string{"127.0.0.53"}, others: []string{"10.2.2.2"}},
		"a server on loopback": {main: "nameserver 127.0.0.1\nnameserver 10.1.1.1\n", own: []string{"127.0.0.1", "10.1.1.1"},
			others: []string{"10.1.1.1"}},
		"only loopback":         {main: "nameserver ::1\n", own: []string{"::1"}, others: nil},
		"comments and nonsense": {main: "# nameserver 1.1.1.1\nnameserver\nnameserver x\n;\nnameserver 10.1.1.1 # first\n", own: []string{"10.1.1.1"}, others: []string{"10.1.1.1"}},
		"empty":                 {main: "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			files := testFiles(t)
			write(t, files.Main, test.main)
			if test.resolved != "" {
				write(t, files.Resolved, test.resolved)
			}
			own, err := files.Read()
			require.NoError(t, err)
			require.Equal(t, test.own, own.Servers)
			others, err := files.ReadForOthers()
			require.NoError(t, err)
			require.ElementsMatch(t, test.others, others.Servers)
		})
	}
}

func TestMissingFileNamesNoServer(t *testing.T) {
	files := testFiles(t)
	config, err := files.Read()
	require.NoError(t, err)
	require.Empty(t, config.Servers)
	require.Equal(t, files.Main, config.File)
	require.NoError(t, os.Mkdir(files.Main, 0o755))
	_, err = files.Read()
	require.ErrorContains(t, err, "read the machine's name servers")
}

func TestContentOfFile(t *testing.T) {
	files := testFiles(t)
	content := "nameserver 10.1.1.1\nsearch a.example b.example\noptions ndots:2 edns0\n"
	write(t, files.Main, content)
	config, err := files.Read()
	require.NoError(t, err)
	require.Equal(t, content, config.String())
	require.Empty(t, config.Without("10.1.1.1").Servers)
}

// TestWatchSeesEveryKindOfChange changes the configuration in the ways in which programs do it.
func TestWatchSeesEveryKindOfChange(t *testing.T) {
	files := testFiles(t)
	dir := filepath.Dir(filepath.Dir(files.Main))
	changes := make(chan []string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- files.Watch(ctx, func() {
			config, err := files.ReadForOthers()
			if err == nil {
				changes <- config.Servers
			}
		})
	}()
	expect := func(servers ...string) {
		t.Helper()
		limit := time.NewTimer(time.Minute)
		defer limit.Stop()
		for {
			select {
			case got := <-changes:
				if len(got) == len(servers) && (len(got) == 0 || got[0] == servers[0]) {
					return
				}
			case <-limit.C:
				t.Fatalf("no change to %v", servers)
			}
		}
	}
	expect()
	write(t, files.Main, "nameserver 10.0.0.1\n") // created
	expect("10.0.0.1")
	write(t, files.Main, "nameserver 10.0.0.2\n") // written in place
	expect("10.0.0.2")
	write(t, files.Main+".new", "nameserver 10.0.0.3\n")
	require.NoError(t, os.Rename(files.Main+".new", files.Main)) // replaced
	expect("10.0.0.3")
	stub := filepath.Join(dir, "run/systemd/resolve/stub-resolv.conf")
	require.NoError(t, os.Remove(files.Main))
	require.NoError(t, os.Symlink("../run/systemd/resolve/stub-resolv.conf", files.Main)) // a link to what does not exist yet
	expect()
	write(t, stub, "nameserver 127.0.0.53\n")
	write(t, files.Resolved, "nameserver 10.0.0.4\n")
	expect("10.0.0.4")
	write(t, files.Resolved, "nameserver 10.0.0.5\n") // behind the stub
	expect("10.0.0.5")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
	expect()
	write(t, stub, "nameserver 10.0.0.6\n") // the directories were created again
	expect("10.0.0.6")
	cancel()
	require.NoError(t, <-done)
}
