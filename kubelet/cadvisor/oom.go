package cadvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	v1 "github.com/google/cadvisor/info/v1"
	"golang.org/x/sys/unix"
)

// killed is the kernel's line about a process that it has killed because memory ran out. The process chooses its name, which may look like
// what follows it.
var killed = regexp.MustCompile(`oom-kill:constraint=([A-Z_]+).*?,task_memcg=.*?,task=(.*),pid=(\d+),uid=\d+`)

// group is the cgroup whose limit was reached, in the same line; "/" if the machine is out of memory.
var group = regexp.MustCompile(`oom_memcg=([^,]*)`)

// ParseOOM reads one message of the kernel's log, without its head. It returns false for a message of something else.
func ParseOOM(message string) (name string, data v1.OomKillEventData, ok bool) {
	found := killed.FindStringSubmatch(message)
	if found == nil {
		return "", v1.OomKillEventData{}, false
	}
	pid, err := strconv.Atoi(found[3])
	if err != nil {
		return "", v1.OomKillEventData{}, false
	}
	name = "/"
	if limit := group.FindStringSubmatch(message); limit != nil && found[1] == "CONSTRAINT_MEMCG" {
		name = limit[1]
	}
	return name, v1.OomKillEventData{Pid: pid, ProcessName: found[2]}, true
}

// WatchOOM implements Interface. It reads the kernel's log from now on.
func (l *Local) WatchOOM(ctx context.Context, report func(string, v1.OomKillEventData)) error {
	log, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("watch OOM kills: %w", err)
	}
	defer log.Close()
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("watch OOM kills: %w", err)
	}
	// Closing the file ends a read that waits for the next message.
	defer context.AfterFunc(ctx, func() { _ = log.Close() })()
	record := make([]byte, 8<<10)
	for {
		n, err := log.Read(record)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EPIPE):
			continue // messages were overwritten before they were read
		case err != nil:
			return fmt.Errorf("watch OOM kills: %w", err)
		}
		_, message, _ := strings.Cut(string(record[:n]), ";")
		if name, data, ok := ParseOOM(message); ok {
			report(name, data)
		}
	}
}
