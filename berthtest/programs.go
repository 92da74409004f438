package berthtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-dev/berth/internal/setup"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/version"
)

const (
	binEnv   = "BERTH_BIN"
	skipEnv  = "BERTHTEST_SKIP"
	buildEnv = "BERTH_BUILD"
)

// kubernetesVersion is that of the clusters.
const kubernetesVersion = version.Kubernetes

// ErrUnavailable is in the chain of the error of Environment.Start on a machine that cannot run clusters: the programs are missing, or this
// process is not root. A suite that may be skipped then checks for it.
var ErrUnavailable = errors.New("clusters cannot run here")

// requireBerth returns the path of the program berth. A machine that cannot run clusters fails the test, or skips it if the user
// has allowed that.
func requireBerth(t testing.TB, args []string) string {
	t.Helper()
	berth, err := findPrograms(t.Context(), "", false)
	if err == nil {
		err = checkRights(slices.Contains(args, apiOnlyFlag))
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

// findPrograms returns the path of the program berth, beside which the others are: in $BERTH_BIN, else in dir, else on the PATH, else where
// `berth setup` has built them. If they are nowhere, build has them built, which $BERTH_BUILD=1 does, too.
func findPrograms(ctx context.Context, dir string, build bool) (string, error) {
	if given := os.Getenv(binEnv); given != "" {
		return programIn(given, binEnv+"="+given)
	}
	if dir != "" {
		return programIn(dir, "BinaryAssetsDirectory "+dir)
	}
	if found, err := exec.LookPath("berth"); err == nil {
		return filepath.Abs(found)
	}
	builder := setup.Config{Output: os.Stderr}
	built, err := builder.Programs(ctx)
	if err != nil && (build || os.Getenv(buildEnv) == "1") {
		built, err = builder.Build(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("%w: no berth on the PATH, %s is not set, and none was built for this module: `go run github.com/berth-dev/berth/cmd/berth setup` "+
			"builds it once (%s=1 does that from here), or install berth: %w", ErrUnavailable, binEnv, buildEnv, err)
	}
	return programIn(built, "berth setup")
}

// checkRights returns an error if this process may not run a cluster: containers need root. An API server alone needs a user namespace, which
// most kernels allow every user.
func checkRights(apiOnly bool) error {
	if os.Geteuid() == 0 {
		return nil
	}
	allowed := checkUserNamespace()
	switch {
	case apiOnly && allowed == nil:
		return nil
	case apiOnly:
		return fmt.Errorf("%w: without root the API server needs a user namespace, which this machine does not allow (sysctl user.max_user_namespaces, "+
			"kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): %w", ErrUnavailable, allowed)
	case allowed == nil:
		return fmt.Errorf("%w: containers need root: run `go test -exec 'sudo -E'`, or compile with `go test -c` and run that as root. Without root "+
			"this machine can run the API server alone, in a user namespace: Environment.APIOnly or %s=true", ErrUnavailable, apiOnlyEnv)
	default:
		return fmt.Errorf("%w: containers need root: run `go test -exec 'sudo -E'`, or compile with `go test -c` and run that as root", ErrUnavailable)
	}
}

// checkUserNamespace makes a user namespace, with mounts, which ends at once.
func checkUserNamespace() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = isolate.UserNamespace()
	return cmd.Run()
}

// programIn returns the path of the program berth in a directory; where says who named that.
func programIn(dir, where string) (string, error) {
	path, err := filepath.Abs(filepath.Join(dir, "berth"))
	if err != nil {
		return "", fmt.Errorf("%s: %w", where, err)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: %s: no program berth there: %w", ErrUnavailable, where, err)
	}
	return path, nil
}
