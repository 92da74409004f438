package up

import (
	"time"

	"github.com/berth-dev/berth/kubelet/logs/rotate"
)

// Limits of the log of each process of the cluster: 10 MiB before it is rotated, and 5 files, the older ones compressed.
const (
	maxLogSize  = rotate.DefaultMaxSize
	maxLogFiles = rotate.DefaultMaxFiles
	// logPeriod is the longest time between two checks of a log that is written to.
	logPeriod = time.Minute
)

// newLogRotation returns the component that bounds the logs of the cluster's processes.
func (c *Cluster) newLogRotation() (runFunc, error) {
	rotator, err := rotate.New(rotate.Deps{Logger: c.logger, Clock: c.clock},
		rotate.Config{MaxSize: maxLogSize, MaxFiles: maxLogFiles, Period: logPeriod, InPlace: true})
	if err != nil {
		return nil, err
	}
	processes := []string{"berth", "controlplane", containerdName}
	for _, name := range []string{proxyName, dnsName} {
		if c.runs(name) {
			processes = append(processes, name)
		}
	}
	var logs []rotate.Log
	for _, name := range processes {
		logs = append(logs, rotate.Log{ContainerID: name, Path: c.Log(name), InPlace: true})
	}
	rotator.SetLogs("berth up", logs)
	return rotator.Start, nil
}
