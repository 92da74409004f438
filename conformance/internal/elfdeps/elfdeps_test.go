package elfdeps_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/conformance/internal/elfdeps"
)

func TestPathFollowsLinksInsideTheRoot(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "usr", "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "usr", "lib", "real")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, link := range [][2]string{
		{"absolute", "/usr/lib/real"}, {"relative", "usr/lib/real"},
		{"above", "../../../usr/lib/real"}, {"twice", "/absolute"},
	} {
		name, target := link[0], link[1]
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if got, err := elfdeps.Root(dir).Path("/" + name); err != nil || got != file {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	if _, err := elfdeps.Root(dir).Path("/loop"); err == nil {
		t.Error("a link to itself was followed to an end")
	}
}

func TestNeedsOfAProgramOfThisMachine(t *testing.T) {
	const program = "/bin/ls"
	needs, err := elfdeps.Root("/").Needs(program)
	if err != nil {
		t.Skipf("this machine's %s is laid out otherwise than Debian's: %v", program, err)
	}
	for _, want := range []string{"ld-linux", "libc.so"} {
		if !slices.ContainsFunc(needs, func(name string) bool { return strings.Contains(name, want) }) {
			t.Errorf("%s needs %v, without %s", program, needs, want)
		}
	}
}

func TestNeedsNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	program, err := os.ReadFile("/bin/ls")
	if err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "program"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := elfdeps.Root(dir).Needs("/program"); err == nil || !strings.Contains(err.Error(), "deps.sh") {
		t.Errorf("got %v, want an error that says where to add the package", err)
	}
}
