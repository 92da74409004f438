package allocation_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/faulttest"
	"github.com/berth-dev/berth/kubelet/allocation"
)

// faults is a step that changes the resources of a Pod.
func faults() []faulttest.Scenario {
	open := func(dir string) (*allocation.Store, *bytes.Buffer) {
		var log bytes.Buffer
		return allocation.Open(dir, slog.New(slog.NewTextHandler(&log, nil))), &log
	}
	allocate := func(dir, cpu string) error {
		store, log := open(dir)
		store.Allocate(sized(cpu))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err := store.Start(ctx) // it writes before it ends
		if strings.Contains(log.String(), "failed to write a checkpoint") {
			err = errors.Join(err, errors.New(log.String()))
		}
		return err
	}
	return []faulttest.Scenario{{
		Name: "allocate resources", Old: "500m", New: "800m",
		Prepare: func(dir string) error { return allocate(dir, "500m") },
		Act:     func(dir string) error { return allocate(dir, "800m") },
		State: func(dir string) (string, error) {
			store, log := open(dir)
			pod := store.Allocated(sized("1"))
			if pod == nil || log.Len() > 0 {
				return "", fmt.Errorf("no resources: %s", log)
			}
			return pod.Spec.Containers[0].Resources.Requests.Cpu().String(), nil
		},
	}}
}

func TestSystemCallsMayFail(t *testing.T) {
	for _, s := range faults() {
		t.Run(s.Name, func(t *testing.T) { faulttest.Run(t, s) })
	}
}
