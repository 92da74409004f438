package machine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
)

const (
	// stallTrigger asks for a report when processes have waited for memory for 100 ms of 2 s, the shortest window that needs no
	// privilege.
	stallTrigger = "some 100000 2000000"
	machineStall = "/proc/pressure/memory"
	// reachedLimit is the file of cgroup v2 that changes when the limit is reached.
	reachedLimit = "memory.events"
	// rearmFraction is the part of the distance by which a threshold of cgroup v1 may be off before it is set again.
	rearmFraction = 8
)

// kernelEvents waits for the kernel's reports about memory.
type kernelEvents struct {
	mu    sync.Mutex // guards all below
	epoll int        // -1 while it is not started
	armed map[eviction.Signal]*usageThreshold
}

// usageThreshold is a registered threshold of cgroup v1.
type usageThreshold struct {
	fd int
	at int64 // bytes in use
}

func newKernelEvents() *kernelEvents {
	return &kernelEvents{epoll: -1, armed: map[eviction.Signal]*usageThreshold{}}
}

// Watch implements eviction.Machine.
func (m *Machine) Watch(ctx context.Context, notify func()) error {
	return m.events.watch(ctx, m.podsDirs(), notify)
}

func (m *Machine) podsDirs() cm.Dirs {
	dirs, err := m.deps.PodsCgroup()
	if err != nil {
		return cm.Dirs{}
	}
	return dirs
}

// watch calls notify for each report until ctx ends.
func (k *kernelEvents) watch(ctx context.Context, pods cm.Dirs, notify func()) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch memory: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return errors.Join(fmt.Errorf("watch memory: %w", err), unix.Close(epoll))
	}
	stalls, limits := openStalls(pods), openLimitEvents(pods)
	defer func() { // after the last report
		k.close()
		for _, fd := range slices.Concat(stalls, limits, []int{stop, epoll}) {
			_ = unix.Close(fd)
		}
	}()
	errs := []error{addTo(epoll, stop, unix.EPOLLIN)}
	for _, fd := range stalls {
		errs = append(errs, addTo(epoll, fd, unix.EPOLLPRI)) // they can always be read
	}
	for _, fd := range limits {
		errs = append(errs, addTo(epoll, fd, unix.EPOLLIN))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	k.mu.Lock()
	k.epoll = epoll
	k.mu.Unlock()
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		_, _ = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !cancel() {
			<-ended
		}
	}()
	return waitForReports(epoll, stop, notify)
}

// waitForReports calls notify for each report until stop is set.
func waitForReports(epoll, stop int, notify func()) error {
	events := make([]unix.EpollEvent, 8)
	for {
		n, err := unix.EpollWait(epoll, events, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch memory: %w", err)
		}
		for _, event := range events[:n] {
			if int(event.Fd) == stop {
				return nil
			}
			drain(int(event.Fd))
		}
		notify()
	}
}

// drain reads what an eventfd or inotify has to say. Files of stalls have nothing to read, and are left alone.
func drain(fd int) {
	var buffer [4096]byte
	_, _ = unix.Read(fd, buffer[:])
}

func addTo(epoll, fd int, events uint32) error {
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch memory: %w", err)
	}
	return nil
}

// close unregisters the thresholds.
func (k *kernelEvents) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for signal, one := range k.armed {
		_ = unix.Close(one.fd)
		delete(k.armed, signal)
	}
	k.epoll = -1
}

// openStalls registers for stalls of the machine and, with cgroup v2, of all Pods. Kernels without them have no such files.
func openStalls(pods cm.Dirs) []int {
	files := []string{machineStall}
	if pods.Unified && pods.Memory != "" {
		files = append(files, filepath.Join(pods.Memory, "memory.pressure"))
	}
	var opened []int
	for _, file := range files {
		fd, err := unix.Open(file, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if _, err := unix.Write(fd, append([]byte(stallTrigger), 0)); err != nil {
			_ = unix.Close(fd)
			continue
		}
		opened = append(opened, fd)
	}
	return opened
}

// openLimitEvents registers for changes of memory.events of all Pods.
func openLimitEvents(pods cm.Dirs) []int {
	if !pods.Unified || pods.Memory == "" {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(pods.Memory, reachedLimit), unix.IN_MODIFY); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return []int{fd}
}

// Arm implements eviction.Machine. The kernel reports the use of memory with cgroup v1 alone.
func (m *Machine) Arm(signal eviction.Signal, distance int64) bool {
	dir := ""
	switch signal {
	case eviction.MemoryAvailable:
		dir = m.memoryRoot
	case eviction.AllocatableMemoryAvailable:
		if dirs := m.podsDirs(); !dirs.Unified {
			dir = dirs.Memory
		}
	}
	if dir == "" {
		return false
	}
	usage, err := readNumber(filepath.Join(dir, "memory.usage_in_bytes"))
	return err == nil && m.events.arm(signal, dir, usage+distance, distance)
}

// findMemoryRoot returns the topmost cgroup of memory with cgroup v1, or "".
func findMemoryRoot() string {
	hierarchies, err := cm.FindHierarchies()
	if err != nil {
		return ""
	}
	for _, h := range hierarchies {
		if !h.Unified && h.Root == "/" && slices.Contains(h.Controllers, "memory") {
			return h.Dir
		}
	}
	return ""
}

// arm has the kernel report when the cgroup uses that many bytes, and when it reclaims memory.
func (k *kernelEvents) arm(signal eviction.Signal, dir string, at, distance int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.epoll < 0 {
		return false
	}
	before := k.armed[signal]
	if before != nil && max(at-before.at, before.at-at) <= distance/rearmFraction {
		return true
	}
	fd, err := register(dir, at)
	if err != nil {
		return false
	}
	if err := addTo(k.epoll, fd, unix.EPOLLIN); err != nil {
		_ = unix.Close(fd)
		return false
	}
	if before != nil {
		_ = unix.Close(before.fd) // unregisters it, and removes it from epoll
	}
	k.armed[signal] = &usageThreshold{fd: fd, at: at}
	return true
}

// register returns an eventfd that the kernel sets when the cgroup's usage crosses that many bytes, and when memory is reclaimed
// there or below.
func register(dir string, at int64) (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		control(dir, fd, "memory.usage_in_bytes", fmt.Sprint(at)),
		control(dir, fd, "memory.pressure_level", "low"))
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// control registers an eventfd for the events of a file of cgroup v1.
func control(dir string, event int, file, argument string) error {
	target, err := unix.Open(filepath.Join(dir, file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	out, err := unix.Open(filepath.Join(dir, "cgroup.event_control"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	_, err = unix.Write(out, fmt.Appendf(nil, "%d %d %s", event, target, argument))
	return err
}
