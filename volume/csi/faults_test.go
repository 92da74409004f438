package csi

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/faulttest"
)

// Faults are the steps that TestSystemCallsMayFail fails: recording that a volume is mounted, and that it is not any more.
func Faults() []faulttest.Scenario {
	p := &Plugin{deps: Deps{Logger: slog.New(slog.DiscardHandler)}}
	save := func(dir, handle string) error {
		_, err := p.saveData(dir, &volumeData{SpecVolID: "pv", VolumeHandle: handle, DriverName: "csi.example.com", NodeName: "n"})
		return err
	}
	state := func(dir string) (string, error) {
		data, err := loadData(dir)
		if errors.Is(err, errNoData) {
			return "none", nil
		}
		if err != nil {
			return "", err
		}
		return data.VolumeHandle, nil
	}
	return []faulttest.Scenario{
		{
			Name: "record a mounted volume", Old: "old", New: "new", State: state,
			Prepare: func(dir string) error { return save(dir, "old") },
			// A mount begins in a directory that an interrupted one may have left.
			Act: func(dir string) error { return errors.Join(atomicfile.Clean(dir), save(dir, "new")) },
		},
		{
			Name: "forget a mounted volume", Old: "old", New: "none", State: state,
			Prepare: func(dir string) error { return save(dir, "old") }, Act: removeData,
		},
	}
}

func TestSystemCallsMayFail(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("removing a volume's directory needs root")
	}
	for _, s := range Faults() {
		t.Run(s.Name, func(t *testing.T) { faulttest.Run(t, s) })
	}
}
