package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/faulttest"
)

// faults are the steps of this package that TestSystemCallsMayFail fails.
func faults() []faulttest.Scenario {
	write := func(dir, content string) error {
		if err := atomicfile.Clean(dir); err != nil {
			return err
		}
		return atomicfile.Write(filepath.Join(dir, "file"), []byte(content), 0o600)
	}
	state := func(dir string) (string, error) {
		data, err := os.ReadFile(filepath.Join(dir, "file"))
		if os.IsNotExist(err) {
			return "none", nil
		}
		return string(data), err
	}
	return []faulttest.Scenario{
		{
			Name: "replace a file", Old: "old", New: "new", State: state,
			Prepare: func(dir string) error { return write(dir, "old") },
			Act:     func(dir string) error { return write(dir, "new") },
		},
		{
			Name: "create a file beside what a crash has left", Old: "none", New: "new", State: state,
			Prepare: func(dir string) error {
				return os.WriteFile(filepath.Join(dir, ".file.berth-tmp-1"), []byte("half"), 0o600)
			},
			Act: func(dir string) error { return write(dir, "new") },
		},
	}
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
