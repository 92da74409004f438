package container

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	selinux "github.com/opencontainers/selinux/go-selinux"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

var rlimits = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

func validateProcess(p *specs.Process) error {
	switch {
	case p == nil:
		return errors.New("the specification has no process")
	case !filepath.IsAbs(p.Cwd):
		return fmt.Errorf("the working directory %q of the process is not absolute", p.Cwd)
	case len(p.Args) == 0:
		return errors.New("the process has no arguments")
	case p.SelinuxLabel != "" && !selinux.GetEnabled():
		return errors.New("the process has a SELinux label, and SELinux is not enabled")
	}
	return nil
}

// newProcess converts a process of the specification.
func newProcess(p *specs.Process) (*libcontainer.Process, error) {
	converted := &libcontainer.Process{
		Args: p.Args, Env: p.Env, Cwd: p.Cwd, UID: int(p.User.UID), GID: int(p.User.GID),
		Label: p.SelinuxLabel, AppArmorProfile: p.ApparmorProfile, NoNewPrivileges: &p.NoNewPrivileges,
		Scheduler: p.Scheduler, IOPriority: p.IOPriority, LogLevel: strconv.Itoa(int(logrus.GetLevel())),
	}
	if size := p.ConsoleSize; size != nil {
		converted.ConsoleWidth, converted.ConsoleHeight = uint16(size.Width), uint16(size.Height)
	}
	if caps := p.Capabilities; caps != nil {
		converted.Capabilities = &configs.Capabilities{
			Bounding: caps.Bounding, Effective: caps.Effective, Inheritable: caps.Inheritable,
			Permitted: caps.Permitted, Ambient: caps.Ambient,
		}
	}
	for _, gid := range p.User.AdditionalGids {
		converted.AdditionalGroups = append(converted.AdditionalGroups, int(gid))
	}
	for _, limit := range p.Rlimits {
		kind, known := rlimits[limit.Type]
		if !known {
			return nil, fmt.Errorf("the process has an unknown rlimit %q", limit.Type)
		}
		converted.Rlimits = append(converted.Rlimits, configs.Rlimit{Type: kind, Hard: limit.Hard, Soft: limit.Soft})
	}
	var err error
	converted.CPUAffinity, err = configs.ConvertCPUAffinity(p.ExecCPUAffinity)
	return converted, err
}
