package main

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/agent"
)

// logFlags limit the log files of containers. They are named as the kubelet's flags.
type logFlags struct {
	maxSize  string
	maxFiles int
}

func (l *logFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.maxSize, "container-log-max-size", "10Mi", "rotate a container's log when it is as large as this")
	f.IntVar(&l.maxFiles, "container-log-max-files", 5, "maximum number of log files per container, at least 2")
}

// apply copies the flags into the config.
func (l *logFlags) apply(config *agent.Config) error {
	size, err := resource.ParseQuantity(l.maxSize)
	if err != nil || size.Sign() <= 0 {
		return usageError{fmt.Errorf("--container-log-max-size %q: want a size like 10Mi", l.maxSize)}
	}
	if l.maxFiles < 2 {
		return usageError{fmt.Errorf("--container-log-max-files %d: want at least 2", l.maxFiles)}
	}
	config.Logs.MaxSize, config.Logs.MaxFiles = size.Value(), l.maxFiles
	return nil
}
