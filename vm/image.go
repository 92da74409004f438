package vm

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

//go:embed recipe/packages.txt
var packageList string

//go:embed recipe/setup.sh
var setupScript string

// rootSize is the size of the root file system; the image is sparse.
const rootSize = "20G"

// The files of an image.
const (
	rootFile   = "root.img"
	kernelFile = "vmlinuz"
	initrdFile = "initrd.img"
	keyFile    = "id_ed25519"
)

// Image is a built system. Its files are read-only for all machines.
type Image struct {
	dir    string
	signer ssh.Signer
}

// Build returns the image of the release from the cache directory, or builds it there first, which takes some two minutes,
// root, and Debian's mmdebstrap. Images that other recipes have made of the release are removed from the cache. Processes that
// build at the same time wait for each other.
func Build(ctx context.Context, cache string, release Release, logger *slog.Logger, output io.Writer) (*Image, error) {
	archive, ok := archives[release]
	if !ok {
		return nil, fmt.Errorf("build image of the virtual machine: release %q: want one of %s", release, Releases())
	}
	cache, err := filepath.Abs(cache) // the machines' disks name the image's
	if err != nil {
		return nil, fmt.Errorf("build image of the virtual machine: %w", err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("build image of the virtual machine: %w", err)
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return nil, fmt.Errorf("build image of the virtual machine: %w", err)
	}
	defer unlock()
	dir := filepath.Join(cache, imageName(release))
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		logger.Info("building the image of the virtual machine; this takes some minutes", "release", release, "directory", dir)
		if err := removeOthers(cache, release); err != nil {
			return nil, fmt.Errorf("remove old images of the virtual machine: %w", err)
		}
		if err := build(ctx, dir+".part", release, archive, output); err != nil {
			return nil, fmt.Errorf("build image of the virtual machine: %w", errors.Join(err, os.RemoveAll(dir+".part")))
		}
		if err := os.Rename(dir+".part", dir); err != nil {
			return nil, fmt.Errorf("build image of the virtual machine: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("read key of the virtual machine: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read key of the virtual machine: %w", err)
	}
	return &Image{dir: dir, signer: signer}, nil
}

// imageName is the name of an image's directory in the cache. It has the release, and a hash of what the image is made from.
func imageName(release Release) string {
	archive := archives[release]
	sum := sha256.Sum256([]byte(strings.Join([]string{archive.kernel, archive.components, rootSize, packageList, setupScript}, "\x00")))
	return string(release) + "-" + hex.EncodeToString(sum[:8])
}

// packages are the names in the list without comments, and the kernel.
func (a archive) packages() []string {
	names := []string{a.kernel}
	for line := range strings.Lines(packageList) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			names = append(names, line)
		}
	}
	return names
}

func build(ctx context.Context, dir string, release Release, archive archive, output io.Writer) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	public, err := writeKey(filepath.Join(dir, keyFile))
	if err != nil {
		return err
	}
	setup := filepath.Join(dir, "setup.sh")
	if err := os.WriteFile(setup, []byte(setupScript), 0o755); err != nil {
		return err
	}
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = output, output
		// What it mounts below root, and it mounts the host's /proc and /sys, ends with it, even if it is killed.
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	args := []string{
		"--variant=minbase", "--mode=root", "--format=directory", `--aptopt=Apt::Install-Recommends "false"`,
		"--components=" + archive.components, "--include=" + strings.Join(archive.packages(), ","),
	}
	if archive.keyring != nil {
		keyring := filepath.Join(dir, "keyring.gpg")
		if err := os.WriteFile(keyring, archive.keyring, 0o644); err != nil {
			return err
		}
		args = append(args, "--keyring="+keyring)
	}
	if err := run("mmdebstrap", append(args, string(release), root)...); err != nil {
		return err
	}
	if err := run(setup, root, public); err != nil {
		return err
	}
	for pattern, file := range map[string]string{"vmlinuz-*": kernelFile, "initrd.img-*": initrdFile} {
		found, err := filepath.Glob(filepath.Join(root, "boot", pattern))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("find the kernel: %d files are called %s", len(found), pattern)
		}
		if err := run("cp", found[0], filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	if err := run("mkfs.ext4", "-q", "-L", "root", "-d", root, filepath.Join(dir, rootFile), rootSize); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// writeKey makes the key that may log in, and returns its public half as of authorized_keys.
func writeKey(path string) (public string, err error) {
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return "", err
	}
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}

// removeOthers removes what is in the cache but the lock file and the images of other releases.
func removeOthers(cache string, release Release) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		of, _, _ := strings.Cut(entry.Name(), "-")
		_, isImage := archives[Release(of)]
		if entry.Name() != "lock" && (!isImage || Release(of) == release) {
			errs = append(errs, os.RemoveAll(filepath.Join(cache, entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// lock waits until no other process has the lock file.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}
