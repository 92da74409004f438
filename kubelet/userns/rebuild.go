package userns

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// rebuild finds the blocks of Pods whose records were lost: the kernel knows which ids the processes of a Pod have. The
// caller holds mu.
func (m *Manager) rebuild(lost []types.UID) {
	processes, err := filepath.Glob(filepath.Join(m.procDir, "[0-9]*"))
	if err != nil {
		return // the pattern is valid
	}
	for _, process := range processes {
		block, ok := m.blockOf(process)
		if !ok {
			continue
		}
		uid := podOf(process, lost)
		switch owner := m.blocks[block]; {
		case uid == "" && owner == "":
			m.blocks[block] = "unknown" // of another program, or of a Pod that cannot be named
		case uid != "" && m.pods[uid] == 0:
			m.blocks[block], m.pods[uid] = uid, block
			if err := m.write(uid, block); err != nil {
				m.logger.Warn("failed to record a user namespace again", "pod", uid, "error", err)
			}
		}
	}
}

// blockOf returns the block of a process in a user namespace.
func (m *Manager) blockOf(process string) (uint32, bool) {
	data, err := os.ReadFile(filepath.Join(process, "uid_map"))
	if err != nil {
		return 0, false // ended meanwhile
	}
	var inside, outside, length uint64
	if _, err := fmt.Fscan(bytes.NewReader(data), &inside, &outside, &length); err != nil {
		return 0, false
	}
	block := outside / uint64(m.size)
	return uint32(block), block > 0 && outside < maxID
}

// podOf returns which of the Pods the process belongs to, by its cgroup; empty if to none.
func podOf(process string, pods []types.UID) types.UID {
	data, err := os.ReadFile(filepath.Join(process, "cgroup"))
	if err != nil {
		return ""
	}
	for _, uid := range pods {
		// systemd's names of cgroups have underscores.
		for _, name := range []string{string(uid), strings.ReplaceAll(string(uid), "-", "_")} {
			if uid != "" && bytes.Contains(data, []byte("pod"+name)) {
				return uid
			}
		}
	}
	return ""
}
