package up

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// inotifyLimit is the file of the sysctl that bounds how many inotify instances one user has, over all clusters and containers.
	inotifyLimit = "/proc/sys/fs/inotify/max_user_instances"
	// minInotify is what it is raised to. A cluster needs some 20 instances, and kernels allow 128 by default.
	minInotify = 1024
)

// raiseInotifyLimit raises the limit in the file to least if it is lower, and returns a sentence for the user if it did.
func raiseInotifyLimit(file string, least int) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the limit of inotify instances: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return "", fmt.Errorf("read the limit of inotify instances from %s: %w", file, err)
	}
	if limit >= least {
		return "", nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(least)), 0o644); err != nil {
		return "", fmt.Errorf("the machine allows %d inotify instances, which few clusters or containers use up: raise it with "+
			"sysctl fs.inotify.max_user_instances=%d (%w)", limit, least, err)
	}
	return fmt.Sprintf("raised fs.inotify.max_user_instances from %d to %d until the machine restarts: a cluster needs some 20", limit, least), nil
}

// allowInotify raises the machine's limit of inotify instances. Without that the cluster may run all the same.
func (c *Cluster) allowInotify() {
	text, err := raiseInotifyLimit(inotifyLimit, minInotify)
	if err != nil {
		text = "warning: " + err.Error()
	}
	if text != "" {
		c.progress.Printf("%s", text)
	}
}
