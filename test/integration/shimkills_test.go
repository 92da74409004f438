//go:build integration

package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/procstat"
)

// shimVictims are Pods whose shims are killed: their containers end, and run again.
type shimVictims struct {
	l     *lifecycleRunner
	kills []int // by Pod
}

// startShimVictims starts Pods that may be restarted.
func (l *lifecycleRunner) startShimVictims(count int) *shimVictims {
	for i := range count {
		l.startReady(&scenario{name: victimName(i), script: sleepScript, policy: corev1.RestartPolicyAlways})
	}
	return &shimVictims{l: l, kills: make([]int, count)}
}

func victimName(i int) string { return fmt.Sprint("victim", i) }

// kill kills the shim of one of the Pods, if its container runs, and returns what it has killed.
func (v *shimVictims) kill(random *rand.Rand) string {
	v.l.t.Helper()
	i := random.IntN(len(v.kills))
	for _, dir := range glob("/proc/[0-9]*") {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(command), v.l.marker(victimName(i))) {
			continue
		}
		shim, ok := parentOf(dir)
		if !ok {
			continue
		}
		program, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", shim))
		if err != nil || !strings.Contains(string(program), "containerd-shim-") {
			continue // a process that the container's first has started, or one that is ending
		}
		require.NoError(v.l.t, syscall.Kill(shim, syscall.SIGKILL))
		v.kills[i]++
		return "shim"
	}
	return "no shim, because the Pod does not run"
}

// parentOf reads the parent of the process with that directory.
func parentOf(dir string) (pid int, ok bool) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, false
	}
	fields := procstat.Fields(stat)
	if len(fields) <= procstat.Parent {
		return 0, false
	}
	pid, err = strconv.Atoi(fields[procstat.Parent])
	return pid, err == nil && pid > 1
}

// requireRunning requires all of the Pods to run, those whose shim was killed again.
func (v *shimVictims) requireRunning() {
	t := v.l.t
	t.Helper()
	for i, kills := range v.kills {
		_, err := v.l.waitPod(t.Context(), victimName(i), "ready", func(pod *corev1.Pod) bool { return pod != nil && isReady(pod) })
		require.NoError(t, err)
		if kills > 0 {
			v.l.waitStarts(victimName(i), 2)
		}
	}
}
