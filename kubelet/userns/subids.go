package userns

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

const (
	// subidsUser is the user that the ids of Pods are delegated to, and subidsProgram the program that knows which they are.
	subidsUser, subidsProgram = "kubelet", "getsubids"
	// subidsTimeout bounds the program, which may ask a server.
	subidsTimeout = 30 * time.Second
)

// idRange is a range of ids of the node.
type idRange struct{ first, length uint32 }

// allButFirst is the range where no ids are delegated: all but the first block, which is the node's own.
func allButFirst(size uint32) idRange {
	return idRange{first: size, length: uint32(1<<32 - uint64(size))}
}

// subids reads which ids are delegated.
type subids struct {
	lookUser func(name string) error // user.UnknownUserError for one that does not exist
	// run runs the program with these arguments; its error wraps exec.ErrNotFound if it is not installed.
	run func(ctx context.Context, args ...string) (string, error)
}

func systemSubids() subids {
	return subids{
		lookUser: func(name string) error { _, err := user.Lookup(name); return err },
		run: func(ctx context.Context, args ...string) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, subidsTimeout)
			defer cancel()
			output, err := exec.CommandContext(ctx, subidsProgram, args...).Output()
			return string(output), err
		},
	}
}

// Delegate limits the blocks of Pods to the ids that the machine's administrator has delegated to the user kubelet, in /etc/subuid and
// /etc/subgid. Without that user, or the program getsubids, there is no limit. The node must have a block for each of as many Pods. A user
// without delegated ids is an error: a server that knows them may not respond.
func (m *Manager) Delegate(ctx context.Context, pods int64) error {
	ids, err := m.subids.read(ctx, m.size)
	if err == nil {
		err = ids.check(m.size, pods)
	}
	if err != nil {
		return fmt.Errorf("ids of user namespaces: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids = ids
	return nil
}

func (s *subids) read(ctx context.Context, size uint32) (idRange, error) {
	var unknown user.UnknownUserError
	switch err := s.lookUser(subidsUser); {
	case errors.As(err, &unknown):
		return allButFirst(size), nil
	case err != nil:
		return idRange{}, fmt.Errorf("find the user %s: %w", subidsUser, err)
	}
	users, err := s.run(ctx, subidsUser)
	if errors.Is(err, exec.ErrNotFound) {
		return allButFirst(size), nil
	}
	if err != nil {
		return idRange{}, fmt.Errorf("%s %s: %w: delegate user IDs to it in /etc/subuid, or delete the user", subidsProgram, subidsUser, err)
	}
	groups, err := s.run(ctx, "-g", subidsUser)
	if err != nil {
		return idRange{}, fmt.Errorf("%s -g %s: %w: delegate group IDs to it in /etc/subgid, or delete the user", subidsProgram, subidsUser, err)
	}
	if users != groups {
		return idRange{}, fmt.Errorf("the user %s has other ids in /etc/subuid (%q) than in /etc/subgid (%q): want the same", subidsUser,
			strings.TrimSpace(users), strings.TrimSpace(groups))
	}
	return parseSubids(users)
}

// parseSubids reads a line like "0: kubelet 65536 7208960".
func parseSubids(output string) (idRange, error) {
	fields := strings.Fields(output)
	if len(fields) != 4 {
		return idRange{}, fmt.Errorf("the user %s has the ids %q: want one range in /etc/subuid and in /etc/subgid", subidsUser, strings.TrimSpace(output))
	}
	first, firstErr := strconv.ParseUint(fields[2], 10, 32)
	length, lengthErr := strconv.ParseUint(fields[3], 10, 32)
	if err := errors.Join(firstErr, lengthErr); err != nil {
		return idRange{}, fmt.Errorf("the user %s has the ids %q: %w", subidsUser, strings.TrimSpace(output), err)
	}
	return idRange{first: uint32(first), length: uint32(length)}, nil
}

// check returns why blocks of the size do not fit into the range, for as many Pods.
func (r idRange) check(size uint32, pods int64) error {
	switch {
	case r.first < size || r.first%size != 0 || r.length%size != 0:
		return fmt.Errorf("the range begins at %d and has %d ids: want multiples of %d, above 0", r.first, r.length, size)
	case int64(r.length/size) < pods:
		return fmt.Errorf("the range of %d ids has %d blocks of %d, and the node takes %d Pods: delegate more ids, or set maxPods or "+
			"userNamespaces.idsPerPod to less", r.length, r.length/size, size, pods)
	}
	return nil
}

// blocks returns the first block of the range and the one behind its last one. The kernel maps no range that ends at 2^32.
func (r idRange) blocks(size uint32) (first, end uint32) {
	last := min(uint64(r.first)+uint64(r.length), maxID-uint64(size))
	return r.first / size, uint32(last / uint64(size))
}
