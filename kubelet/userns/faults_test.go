package userns_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/faulttest"
	"github.com/berth-dev/berth/kubelet/userns"
)

// faults is a step that reads the record of one Pod and writes that of another.
func faults() []faulttest.Scenario {
	ensure := func(dir, uid string) error {
		if err := os.MkdirAll(filepath.Join(dir, "proc"), 0o700); err != nil {
			return err
		}
		_, err := userns.NewWithProc(filepath.Join(dir, "pods"), filepath.Join(dir, "proc")).Ensure("a")
		if err != nil || uid == "a" {
			return err
		}
		_, err = userns.NewWithProc(filepath.Join(dir, "pods"), filepath.Join(dir, "proc")).Ensure("b")
		return err
	}
	return []faulttest.Scenario{{
		Name: "record a user namespace", Old: "a 65536 ", New: "a 65536 b 131072 ",
		Prepare: func(dir string) error {
			for _, uid := range []string{"a", "b"} {
				if err := os.MkdirAll(filepath.Join(dir, "pods", uid), 0o700); err != nil {
					return err
				}
			}
			return ensure(dir, "a")
		},
		Act: func(dir string) error { return ensure(dir, "b") },
		State: func(dir string) (string, error) {
			var state strings.Builder
			for _, uid := range []string{"a", "b"} {
				data, err := os.ReadFile(filepath.Join(dir, "pods", uid, "userns"))
				if os.IsNotExist(err) {
					continue
				}
				if err != nil {
					return "", err
				}
				var id uint32
				if _, err := fmt.Sscanf(string(data), `{"uidMappings":[{"hostId":%d`, &id); err != nil {
					return "", fmt.Errorf("%s: %w", data, err)
				}
				fmt.Fprintf(&state, "%s %d ", uid, id)
			}
			return state.String(), nil
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
