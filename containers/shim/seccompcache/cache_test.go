//go:build cgo && seccomp

package seccompcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"
)

// loadProfile makes this program, started as a process of a container is, load the profile on its standard input and report.
const loadProfile = "SECCOMPCACHE_TEST_LOAD"

// report is what such a process says.
type report struct {
	Used  int    // filters from the file
	Sync  string // of a call that the profile refuses
	Wide  string // of one that it refuses with some arguments only
	Error string
}

func TestMain(m *testing.M) {
	if os.Getenv(loadProfile) == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the filter is of one thread, as that of a process of a container before its program starts
	var r report
	var profile configs.Seccomp
	if err := json.NewDecoder(os.Stdin).Decode(&profile); err != nil {
		r.Error = err.Error()
	} else if _, err := seccomp.InitSeccomp(&profile); err != nil {
		r.Error = err.Error()
	} else {
		r.Used = Used()
		unix.Sync()
		_, _, errno := unix.RawSyscall(unix.SYS_SYNCFS, 1, 0, 0)
		r.Sync = errno.Error()
		_, _, errno = unix.RawSyscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
		r.Wide = errno.Error()
		if _, _, other := unix.RawSyscall(unix.SYS_PERSONALITY, 8, 0, 0); other == errno {
			r.Wide = "both " + r.Wide
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

// profile allows all that Go needs, in many rules as containerd's default profile has, and refuses syncfs and one argument of personality.
func profile(number int) *configs.Seccomp {
	one := uint(unix.EXDEV)
	p := &configs.Seccomp{
		DefaultAction: configs.Allow, Architectures: []string{"amd64", "x86", "x32"},
		Syscalls: []*configs.Syscall{
			{Name: "syncfs", Action: configs.Errno, ErrnoRet: &one},
			{Name: "personality", Action: configs.Errno, ErrnoRet: &one, Args: []*configs.Arg{{Index: 0, Value: 0xffffffff, Op: configs.EqualTo}}},
			{Name: "no_such_call", Action: configs.Errno},
		},
	}
	for i := range 60 {
		p.Syscalls = append(p.Syscalls, &configs.Syscall{Name: "ioctl", Action: configs.Errno, Args: []*configs.Arg{
			{Index: 1, Value: uint64(0xabcd0000 + 100*number + i), Op: configs.EqualTo}, {Index: 2, Value: 7, ValueTwo: 7, Op: configs.MaskEqualTo},
		}})
	}
	return p
}

// load loads a profile in a process that has been given a file.
func load(t *testing.T, file string, p *configs.Seccomp) report {
	t.Helper()
	input, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(program)
	child.Args[0] = prefix + file
	child.Env = append(os.Environ(), loadProfile+"=1", "_LIBCONTAINER_INITPIPE=3")
	child.Stdin, child.Stderr = bytes.NewReader(input), os.Stderr
	out, err := child.Output()
	var r report
	if err := errors.Join(err, json.Unmarshal(out, &r)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Error != "" {
		t.Fatal(r.Error)
	}
	return r
}

func requireRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a process without no_new_privs needs root to load a filter")
	}
}

// TestFilterComesFromTheFile compiles a profile once, loads it in processes with the file and without, and compares what it does.
func TestFilterComesFromTheFile(t *testing.T) {
	requireRoot(t)
	c := Cache{Dir: filepath.Join(t.TempDir(), "cache")}
	file, err := c.File(profile(1))
	if err != nil {
		t.Fatal(err)
	}
	refused := unix.EXDEV.Error()
	for with, want := range map[string]int{file: 1, filepath.Join(c.Dir, "none"): 0} {
		if r := load(t, with, profile(1)); r.Used != want || r.Sync != refused || r.Wide != refused {
			t.Errorf("with file %s: %+v, want %d filters from it, and calls that are refused", with, r, want)
		}
	}
	if r := load(t, file, profile(2)); r.Used != 0 || r.Sync != refused {
		t.Errorf("with the file of another profile: %+v", r)
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.File(profile(1)); err != nil || again != file {
		t.Fatal(again, err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Error("a profile that is known was compiled again")
	}
}

// TestTheSameProgram compares the filter that libseccomp makes in the process of a container with that of the file.
func TestTheSameProgram(t *testing.T) {
	_, once, err := compile(profile(1))
	if err != nil {
		t.Fatal(err)
	}
	calls, twice, err := compile(profile(1))
	if err != nil {
		t.Fatal(err)
	}
	if len(once) < 800 || !bytes.Equal(once, twice) {
		t.Errorf("two programs of %d and %d bytes for one profile", len(once), len(twice))
	}
	if other, _, err := compile(profile(2)); err != nil || bytes.Equal(other, calls) {
		t.Errorf("two profiles have the same calls: %v", err)
	}
	// Nothing of that was loaded into this process.
	if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0); errno != 0 {
		t.Errorf("the profile is loaded: %v", errno)
	}
}

// TestBadFilesAreNotUsed damages a file in each byte of its header and some others, and makes it writable for others.
func TestBadFilesAreNotUsed(t *testing.T) {
	requireRoot(t)
	c := Cache{Dir: t.TempDir()}
	file, err := c.File(profile(1))
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	try := func(what string, data []byte, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(bad, data, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(bad, mode); err != nil {
			t.Fatal(err)
		}
		if r := load(t, bad, profile(1)); r.Used != 0 || r.Sync != unix.EXDEV.Error() {
			t.Errorf("%s: %+v", what, r)
		}
	}
	for at := 0; at < len(good); at += max(1, at-headerSize) {
		damaged := bytes.Clone(good)
		damaged[at] ^= 0x10
		try(fmt.Sprint("damage at ", at), damaged, 0o600)
		if valid(damaged) {
			t.Errorf("a file with damage at %d is taken for a good one", at)
		}
	}
	try("cut", good[:len(good)-8], 0o600)
	try("empty", nil, 0o600)
	try("writable by others", good, 0o622)
	if err := os.WriteFile(file, good[:100], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.File(profile(1)); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, good) {
		t.Errorf("a damaged file is not replaced: %v", err)
	}
}

// TestProfilesThatCannotBeCompiled have no file, and the error of runc's library.
func TestProfilesThatCannotBeCompiled(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	bad := profile(1)
	bad.Architectures = []string{"SCMP_ARCH_NONE"}
	if _, err := c.File(bad); err == nil || !strings.Contains(err.Error(), "validating Seccomp architecture") {
		t.Error(err)
	}
	if _, err := c.File(profile(1)); err != nil {
		t.Errorf("after one that cannot: %v", err)
	}
}

// TestFilesAreBounded makes more profiles than a cache keeps; the oldest goes first.
func TestFilesAreBounded(t *testing.T) {
	c := Cache{Dir: t.TempDir()}
	first := ""
	for i := range maxFiles + 3 {
		file, err := c.File(profile(i))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Unix(int64(i+1), 0)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = file
		}
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil || len(entries) != maxFiles {
		t.Errorf("%d files, %v", len(entries), err)
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the oldest file: %v", err)
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, _, err := compile(profile(1)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKnown(b *testing.B) {
	c := Cache{Dir: b.TempDir()}
	for b.Loop() {
		if _, err := c.File(profile(1)); err != nil {
			b.Fatal(err)
		}
	}
}
