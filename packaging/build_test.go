package packaging

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSameProgramsGiveTheSameBytes builds twice, in other directories, with files of another age.
func TestSameProgramsGiveTheSameBytes(t *testing.T) {
	var builds [2][]string
	for i := range builds {
		config := newFixture(t, "1.2.3")
		require.NoError(t, os.Chtimes(filepath.Join(config.Bin, "berth"), time.Unix(int64(i), 0), time.Unix(int64(i), 0)))
		var err error
		builds[i], err = Build(config)
		require.NoError(t, err)
		require.NoError(t, WriteChecksums(config.Out))
	}
	require.Len(t, builds[0], 3)
	for i, path := range builds[0] {
		one, err := os.ReadFile(path)
		require.NoError(t, err)
		two, err := os.ReadFile(builds[1][i])
		require.NoError(t, err)
		require.Equal(t, filepath.Base(path), filepath.Base(builds[1][i]))
		require.True(t, string(one) == string(two), "%s differs", filepath.Base(path))
	}
	sums, err := os.ReadFile(filepath.Join(filepath.Dir(builds[0][0]), "SHA256SUMS"))
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(sums), "\n"))
	require.Contains(t, string(sums), "  berth_1.2.3_amd64.deb\n")
}

func TestDebianPackageHasWhatDebianExpects(t *testing.T) {
	dpkg := requireProgram(t, "dpkg-deb")
	config := newFixture(t, "1.2.3-4-gabc123")
	paths, err := Build(config)
	require.NoError(t, err)
	fields := output(t, dpkg, "--field", paths[0])
	for _, want := range []string{"Package: berth\n", "Version: 1.2.3+4.gabc123\n", "Architecture: amd64\n", "iptables", "Section: admin\n"} {
		require.Contains(t, fields, want)
	}
	contents := output(t, dpkg, "--contents", paths[0])
	for _, want := range []string{
		"./usr/bin/berth\n", "./usr/bin/kubectl-why -> berth\n", "./usr/libexec/berth/cni/bridge\n", "./etc/berth/config.yaml\n", "./etc/berth/certs.d/\n",
		"./usr/lib/systemd/system/berth@.service\n", "./usr/share/man/man1/berth-up.1.gz\n", "./usr/share/bash-completion/completions/berth\n",
		"./usr/share/doc/berth/copyright\n", "./usr/share/doc/berth/LICENSE.gz\n",
	} {
		require.Contains(t, contents, want)
	}
	for line := range strings.Lines(contents) {
		require.Contains(t, line, "root/root")
		require.Contains(t, line, "2026-03-04 05:06")
	}
	control := t.TempDir()
	output(t, dpkg, "--control", paths[0], control)
	conffiles, err := os.ReadFile(filepath.Join(control, "conffiles"))
	require.NoError(t, err)
	require.Equal(t, "/etc/berth/config.yaml\n", string(conffiles))
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", filepath.Join(control, name))
	}
}

func TestRPMHasWhatItsPeersHave(t *testing.T) {
	rpm := requireProgram(t, "rpm")
	paths, err := Build(newFixture(t, "1.2.3-rc1"))
	require.NoError(t, err)
	require.Equal(t, "berth-1.2.3~rc1-1.x86_64.rpm", filepath.Base(paths[1]))
	contents := output(t, rpm, "-qlp", paths[1])
	require.Contains(t, contents, "/usr/libexec/berth/runc\n")
	require.Contains(t, output(t, rpm, "-qcp", paths[1]), "/etc/berth/config.yaml\n")
	require.Contains(t, output(t, rpm, "-qp", "--scripts", paths[1]), "try-restart berth.service")
}

func TestTarUnpacksAtTheRoot(t *testing.T) {
	paths, err := Build(newFixture(t, "1.2.3"))
	require.NoError(t, err)
	file, err := os.Open(paths[2])
	require.NoError(t, err)
	defer file.Close()
	plain, err := gzip.NewReader(file)
	require.NoError(t, err)
	found := map[string]*tar.Header{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		found[header.Name] = header
	}
	require.Equal(t, int64(0o755), found["usr/bin/berth"].Mode)
	require.Equal(t, "berth", found["usr/bin/kubectl-why"].Linkname)
	require.Equal(t, byte(tar.TypeDir), found["etc/berth/certs.d/"].Typeflag)
	require.True(t, fixtureTime.Equal(found["usr/libexec/berth/runc"].ModTime))
}

func TestMissingProgramsAreNamed(t *testing.T) {
	config := newFixture(t, "1.2.3")
	require.NoError(t, os.Remove(filepath.Join(config.Bin, "runc")))
	_, err := Build(config)
	require.ErrorContains(t, err, filepath.Join(config.Bin, "runc")+": run make build first")
	config.Arch = "mips"
	_, err = Build(config)
	require.ErrorContains(t, err, `architecture "mips": want amd64 or arm64`)
}

func TestVersionsOfPackages(t *testing.T) {
	for text, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-dirty": "1.2.3+0.dirty", "1.2.3-rc1": "1.2.3~rc1", "1.2.3-rc1-dirty": "1.2.3~rc1+0.dirty", "1.2.3-12-gabc": "1.2.3+12.gabc", "1.2.3-12-gabc-dirty": "1.2.3+12.gabc.dirty",
		"1.2.3-rc1-12-gabc": "1.2.3~rc1+12.gabc", "0.1.0-dev.abc": "0.1.0~dev20260304050607.abc", "0.1.0-dev.abc.dirty": "0.1.0~dev20260304050607.abc.dirty",
	} {
		version, err := ParseVersion(text, fixtureTime)
		require.NoError(t, err, text)
		require.Equal(t, want, version.String())
	}
	_, err := ParseVersion("latest", fixtureTime)
	require.ErrorContains(t, err, `version "latest": want 1.2.3`)
}

// TestVersionsAreInOrder has dpkg itself compare.
func TestVersionsAreInOrder(t *testing.T) {
	dpkg := requireProgram(t, "dpkg")
	last := ""
	for _, text := range []string{"0.1.0-dev.fff", "0.1.0-rc1", "0.1.0-rc1-3-gaaa", "0.1.0", "0.1.0-dirty", "0.1.0-2-gbbb", "0.1.0-11-gaaa", "0.1.1-dev.aaa"} {
		version, err := ParseVersion(text, fixtureTime)
		require.NoError(t, err)
		if last != "" {
			output(t, dpkg, "--compare-versions", last, "lt", version.String())
		}
		last = version.String()
	}
}

func TestDependenciesComeFromThePrograms(t *testing.T) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	require.NoError(t, err)
	libraries, err := needed([]file{{source: shell, mode: 0o755}, {source: "build_test.go", mode: 0o755}})
	require.NoError(t, err)
	if len(libraries.names) == 0 {
		t.Skip("the shell of this machine is static")
	}
	require.Contains(t, libraries.names, "libc.so.6")
	depends, err := libraries.debDepends()
	require.NoError(t, err)
	require.Contains(t, depends, "libc6 (>= "+libraries.glibc+")")
	require.True(t, newer("2.34", "2.4") && newer("2.4", "") && !newer("2.4", "2.34"))
	libraries.names = append(libraries.names, "libodd.so.1")
	_, err = libraries.debDepends()
	require.ErrorContains(t, err, "a program needs libodd.so.1")
}

func TestAPackageWithoutManPagesSaysSo(t *testing.T) {
	config := newFixture(t, "1.2.3")
	require.NoError(t, os.RemoveAll(filepath.Join(config.Reference, "man")))
	_, err := Build(config)
	require.ErrorContains(t, err, "there are no man pages in "+config.Reference)
	require.NotContains(t, err.Error(), "%!")
}
