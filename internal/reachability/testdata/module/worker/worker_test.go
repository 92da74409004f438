package worker_test

import (
	"testing"

	"example.com/module/testutil"
	"example.com/module/worker"
)

func fixture() *worker.Worker { return worker.New(func() {}) }

func TestRun(t *testing.T) {
	testutil.Check(t)
	t.Run("sub", func(t *testing.T) { fixture().Run() })
}

func TestUnwired(t *testing.T) { fixture().Unwired() }
