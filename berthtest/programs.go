package berthtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	binEnv  = "BERTH_BIN"
	skipEnv = "BERTHTEST_SKIP"
)

// requireBerth returns the path of the program berth. A machine that cannot run clusters fails the test, or skips it if the user
// has allowed that.
func requireBerth(t testing.TB) string {
	t.Helper()
	berth, err := findBerth(os.Getenv(binEnv))
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("containers need root: run `go test -exec 'sudo -E'`, or compile with `go test -c` and run that as root")
	}
	if err == nil {
		return berth
	}
	if os.Getenv(skipEnv) == "1" {
		t.Skipf("berthtest: %v", err)
	}
	t.Fatalf("berthtest: %v (%s=1 skips such tests)", err, skipEnv)
	return ""
}

// findBerth returns the program in dir, or on the PATH if dir is empty.
func findBerth(dir string) (string, error) {
	if dir == "" {
		found, err := exec.LookPath("berth")
		if err != nil {
			return "", fmt.Errorf("no berth on the PATH, and %s is not set: install berth (make install), or set %s to the bin directory of its build", binEnv, binEnv)
		}
		return filepath.Abs(found)
	}
	path, err := filepath.Abs(filepath.Join(dir, "berth"))
	if err != nil {
		return "", fmt.Errorf("%s: %w", binEnv, err)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s=%s: no program berth there: %w", binEnv, dir, err)
	}
	return path, nil
}
