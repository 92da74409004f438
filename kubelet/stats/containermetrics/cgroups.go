package containermetrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/cadvisor/info/v1"
)

// machineCgroup is the cgroup of the whole machine.
const machineCgroup = "/"

// cgroups measures all cgroups that are reported.
func (e *Exporter) cgroups(ctx context.Context) (map[string]*v1.ContainerInfo, error) {
	found, err := e.find(ctx)
	if err != nil {
		return nil, err
	}
	disks, err := readDisks()
	if err != nil {
		return nil, err
	}
	all := make(map[string]*v1.ContainerInfo, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read usage of %d cgroups: %w", len(found), err)
		}
		info, err := e.deps.Machine.ContainerInfo(name, &v1.ContainerInfoRequest{NumStats: 1})
		if err != nil {
			// It has ended meanwhile, or is not counted; the others are reported.
			e.deps.Logger.Debug("could not measure cgroup; omitting it", "cgroup", name, "error", err)
			continue
		}
		all[name] = found[name].report(info, disks)
	}
	return all, nil
}

// report returns a cgroup's usage as it is served. A given cAdvisor keeps what it has measured, so that it is copied.
func (k *labelled) report(measured *v1.ContainerInfo, disks *disks) *v1.ContainerInfo {
	out, machine := *measured, measured.Name == machineCgroup
	k.describe(&out)
	out.Spec.HasFilesystem = machine || k.written != nil
	out.Stats = nil
	for _, stats := range measured.Stats {
		one := *stats
		one.DiskIo = disks.named(stats.DiskIo)
		if !machine && !k.ownNetwork {
			one.Network = v1.NetworkStats{}
		}
		switch {
		case machine:
			disks.reportAll(&one)
		case k.written != nil:
			one.Filesystem = disks.layer(k.written)
		}
		out.Stats = append(out.Stats, &one)
	}
	return &out
}

// find returns the cgroups that are reported, by their paths: the machine's, those of the node's own programs, and those of all Pods down to
// their containers. What is below a container's cgroup is the container's own.
func (e *Exporter) find(ctx context.Context) (map[string]*labelled, error) {
	byName, byPath, err := e.running(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]*labelled{machineCgroup: {}}
	for _, name := range e.programs() {
		found[name] = &labelled{}
	}
	dirs, err := e.deps.Cgroups.PodsDirs()
	if err != nil {
		return nil, err
	}
	top, pods := dirs.Memory, dirs.Group
	if top == "" {
		return nil, errors.New("list cgroups of Pods: no cgroup hierarchy counts memory")
	}
	err = filepath.WalkDir(top, func(dir string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && (dir != top || errors.Is(err, fs.ErrNotExist)):
			return nil // it has ended meanwhile, or there is no Pod yet
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		}
		name := path.Join(pods, strings.TrimPrefix(dir, top))
		if one := byName[entry.Name()]; one != nil {
			found[name] = one
			return fs.SkipDir
		}
		if found[name] = byPath[name]; found[name] == nil {
			found[name] = &labelled{}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroups of Pods: %w", err)
	}
	return found, nil
}

// programs returns the cgroups of the node's own programs: the configured ones, or those in which the programs run.
func (e *Exporter) programs() []string {
	layout := e.deps.Layout()
	var out []string
	add := func(configured, process string) {
		name := configured
		if name == "" && process != "" {
			dirs, _, err := e.deps.Cgroups.ProcessDirs(filepath.Join("/proc", process, "cgroup"))
			if err != nil {
				e.deps.Logger.Debug("could not find cgroup of process; omitting it", "process", process, "error", err)
			}
			name = dirs.Group
		}
		if name != "" {
			out = append(out, path.Join("/", name))
		}
	}
	add(layout.KubeletCgroupsName, "self")
	runtime := ""
	if pid := e.deps.RuntimePID(); pid > 0 {
		runtime = strconv.Itoa(pid)
	}
	add(layout.RuntimeCgroupsName, runtime)
	add(layout.SystemCgroupsName, "")
	return out
}
