package csidriver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/csidriver"
)

// envDriver has the test's program be a driver with this configuration, to be killed.
const envDriver = "BERTH_TEST_CSI_DRIVER"

// envOwnMounts says that the test's program has a mount namespace of its own.
const envOwnMounts = "BERTH_TEST_OWN_MOUNTS"

// ownMounts gives the test's program a mount namespace of its own, by executing it again. A mount namespace that the test of another package
// makes meanwhile would have copies of these tests' mounts otherwise, and file systems that are unmounted here would stay in use there.
func ownMounts() error {
	if os.Geteuid() != 0 || os.Getenv(envOwnMounts) != "" {
		return nil
	}
	runtime.LockOSThread() // the thread that executes the program has the namespace
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace for the tests: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts of the tests private: %w", err)
	}
	return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), envOwnMounts+"=1"))
}

func TestMain(m *testing.M) {
	if text := os.Getenv(envDriver); text != "" {
		var config csidriver.Config
		err := json.Unmarshal([]byte(text), &config)
		if err == nil {
			err = csidriver.Serve(context.Background(), csidriver.Deps{}, config)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := ownMounts(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		// The test framework of the CSI suite waits for signals as long as the process lives.
		goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler."+
			"(*InterruptHandler).registerForInterrupts.func2"))
}
