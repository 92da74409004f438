package pullrecords_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/faulttest"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// faults is a step that records the beginning of a pull, beside an image that was pulled.
func faults() []faulttest.Scenario {
	manager := func(dir string) (*pullrecords.Manager, error) {
		return pullrecords.New(pullrecords.Deps{Clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}, pullrecords.Config{Dir: dir})
	}
	return []faulttest.Scenario{{
		Name: "begin to pull an image", Old: "0 pulling, 1 pulled", New: "1 pulling, 1 pulled",
		Prepare: func(dir string) error {
			m, err := manager(dir)
			if err == nil {
				err = m.BeginPull("reg.example/other:1")
			}
			if err == nil {
				m.PullSucceeded("reg.example/other:1", id, pullrecords.Source{})
			}
			return err
		},
		Act: func(dir string) error {
			m, err := manager(dir)
			if err != nil {
				return err
			}
			return m.BeginPull(image)
		},
		State: func(dir string) (string, error) {
			m, err := manager(dir)
			if err != nil {
				return "", err
			}
			if _, err := m.Allowed(image, id, func() []pullrecords.Source { return nil }); err != nil { // it reads the files
				return "", err
			}
			intents, records := m.Counts()
			return fmt.Sprintf("%d pulling, %d pulled", intents, records), nil
		},
	}}
}

func TestMain(m *testing.M) {
	faulttest.Main(faults()...)
	os.Exit(m.Run())
}

func TestSystemCallsMayFail(t *testing.T) {
	for _, s := range faults() {
		t.Run(s.Name, func(t *testing.T) { faulttest.Run(t, s) })
	}
}
