package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// debianRoot is the root directory of a small system with dpkg's database and a shell, in which maintainer scripts run.
type debianRoot struct {
	t    *testing.T
	path string
}

func newDebianRoot(t *testing.T) *debianRoot {
	t.Helper()
	requireProgram(t, "dpkg")
	busybox := requireProgram(t, "busybox")
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	r := &debianRoot{t, t.TempDir()}
	for _, dir := range []string{"bin", "dev", "proc", "tmp", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		require.NoError(t, os.MkdirAll(r.at(dir), 0o755))
	}
	for _, file := range []string{"dev/null", "var/lib/dpkg/status", "var/lib/dpkg/available"} {
		require.NoError(t, os.WriteFile(r.at(file), nil, 0o644))
	}
	program, err := os.ReadFile(busybox)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(r.at("bin/busybox"), program, 0o755))
	if exec.Command("chroot", r.path, "/bin/busybox", "true").Run() != nil {
		t.Skip("install busybox-static to run this test")
	}
	output(t, "chroot", r.path, "/bin/busybox", "--install", "-s", "/bin")
	r.mount("proc", "proc")
	return r
}

func (r *debianRoot) at(path string) string { return filepath.Join(r.path, path) }

// mount mounts a file system until the end of the test, unless something else unmounts it.
func (r *debianRoot) mount(kind, path string) {
	require.NoError(r.t, os.MkdirAll(r.at(path), 0o755))
	require.NoError(r.t, unix.Mount(kind, r.at(path), kind, 0, ""))
	r.t.Cleanup(func() { _ = unix.Unmount(r.at(path), unix.MNT_DETACH) })
}

// dpkg runs dpkg on the system.
func (r *debianRoot) dpkg(args ...string) (string, error) {
	cmd := exec.Command("dpkg", append([]string{"--root=" + r.path, "--force-depends", "--force-bad-path", "--log=/dev/null"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r *debianRoot) mustDpkg(args ...string) string {
	r.t.Helper()
	out, err := r.dpkg(args...)
	require.NoError(r.t, err, out)
	return out
}

func (r *debianRoot) write(path, text string) {
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.at(path)), 0o755))
	require.NoError(r.t, os.WriteFile(r.at(path), []byte(text), 0o644))
}

func debOf(t *testing.T, version string) string {
	t.Helper()
	paths, err := Build(newFixture(t, version))
	require.NoError(t, err)
	return paths[0]
}

// TestInstallUpgradeRemovePurge takes a package through its life on a system without systemd. The machine of module vm does the
// same with systemd and a cluster.
func TestInstallUpgradeRemovePurge(t *testing.T) {
	r := newDebianRoot(t)
	r.mustDpkg("--install", debOf(t, "1.2.3"))
	require.Equal(t, "berth 1.2.3\n", output(t, "chroot", r.path, "/usr/bin/berth"))
	r.write("etc/berth/config.yaml", "api-port: 7000\n")
	r.write("var/lib/berth/cluster.json", "{}")
	r.write("var/lib/berth-second/cluster.json", "{}")
	r.write("var/lib/berthold", "not ours")
	r.mustDpkg("--install", "--force-confdef", debOf(t, "1.2.4"))
	require.Equal(t, "berth 1.2.4\n", output(t, "chroot", r.path, "/usr/bin/berth"))
	config, err := os.ReadFile(r.at("etc/berth/config.yaml"))
	require.NoError(t, err)
	require.Equal(t, "api-port: 7000\n", string(config), "the administrator's")

	r.mustDpkg("--remove", "berth")
	require.NoFileExists(t, r.at("usr/bin/berth"))
	require.NoDirExists(t, r.at("usr/libexec/berth"))
	require.FileExists(t, r.at("var/lib/berth/cluster.json"), "removing keeps the data")
	require.FileExists(t, r.at("etc/berth/config.yaml"))

	r.mount("tmpfs", "var/lib/berth/kubelet/pods/a/volumes/secret")
	r.write("var/lib/berth/kubelet/pods/a/volumes/secret/token", "x")
	out := r.mustDpkg("--purge", "berth")
	require.NoDirExists(t, r.at("var/lib/berth"), out)
	require.NoDirExists(t, r.at("etc/berth"))
	require.Contains(t, out, "kept /var/lib/berth-second")
	require.FileExists(t, r.at("var/lib/berth-second/cluster.json"))
	require.FileExists(t, r.at("var/lib/berthold"))
}

// TestPurgeNamesDataBehindALink has an administrator's link to another disk in the place of the data directory.
func TestPurgeNamesDataBehindALink(t *testing.T) {
	r := newDebianRoot(t)
	r.mustDpkg("--install", debOf(t, "1.2.3"))
	r.write("srv/disk/cluster.json", "{}")
	require.NoError(t, os.Symlink("/srv/disk", r.at("var/lib/berth")))
	r.mustDpkg("--remove", "berth")
	out := r.mustDpkg("--purge", "berth")
	require.Contains(t, out, "kept /srv/disk, to which the link /var/lib/berth leads: unmount what is mounted below it and delete both if you do not need them")
	require.FileExists(t, r.at("srv/disk/cluster.json"))
	_, err := os.Lstat(r.at("var/lib/berth"))
	require.NoError(t, err)
}

// TestPurgeKeepsTheDataOfACluster refuses while a process of a cluster runs that no service has started, and leaves a file system
// that is mounted at the data directory.
func TestPurgeKeepsTheDataOfACluster(t *testing.T) {
	r := newDebianRoot(t)
	r.mustDpkg("--install", debOf(t, "1.2.3"))
	r.mount("tmpfs", "var/lib/berth")
	r.write("var/lib/berth/cluster.json", "{}")
	r.mustDpkg("--remove", "berth")
	stat, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	// printf %s /var/lib/berth | sha256sum
	r.write("run/berth/5a2cdf17/node.pid", strings.Join([]string{strings.Fields(string(stat))[0], fields[19]}, " ")+"\n")
	out, err := r.dpkg("--purge", "berth")
	require.Error(t, err)
	require.Contains(t, out, "a cluster that was started by hand runs on /var/lib/berth: stop it, then purge again")
	require.FileExists(t, r.at("var/lib/berth/cluster.json"))

	r.write("run/berth/5a2cdf17/node.pid", "4194303 1\n")
	r.mustDpkg("--purge", "berth")
	require.NoFileExists(t, r.at("var/lib/berth/cluster.json"))
	require.DirExists(t, r.at("var/lib/berth"), "the mount point")
}
