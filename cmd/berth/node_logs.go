package main

import (
	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/settings"
)

// logFlags limit the log files of containers. They are named as the kubelet's flags.
type logFlags struct {
	maxSize  string
	maxFiles int
}

func (l *logFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.maxSize, "container-log-max-size", "10Mi", "rotate a container's log when it is as large as this; negative: never")
	f.IntVar(&l.maxFiles, "container-log-max-files", 5, "maximum number of log files per container, at least 2")
}

// set copies the flags into the configuration.
func (l *logFlags) set(c *settings.Configuration) {
	c.ContainerLogMaxSize, c.ContainerLogMaxFiles = l.maxSize, ptr.To(int32(l.maxFiles))
}
