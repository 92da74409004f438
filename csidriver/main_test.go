package csidriver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/csidriver"
)

// envDriver has the test's program be a driver with this configuration, to be killed.
const envDriver = "BERTH_TEST_CSI_DRIVER"

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
	goleak.VerifyTestMain(m,
		// The test framework of the CSI suite waits for signals as long as the process lives.
		goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler."+
			"(*InterruptHandler).registerForInterrupts.func2"))
}
