//go:build vm

package vm

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shutdownPeriods are 80 s for ordinary Pods, and after that 40 s for critical ones: a machine without KVM is slow.
const shutdownPeriods = "shutdownGracePeriod: 120s\nshutdownGracePeriodCriticalPods: 40s\n"

// waitForInhibitor is the script that waits until a kubelet delays shutdowns.
const waitForInhibitor = "systemd-inhibit --list --no-legend | grep '^kubelet .* shutdown .* delay'"

// TestPodsEndBeforeTheMachine has logind itself shut the machine down: first as systemctl reboot does, then by the power
// button. Pods end by priority, with their hooks and within their grace periods, and come back with the machine.
func TestPodsEndBeforeTheMachine(t *testing.T) {
	m := startStandaloneKubelet(t, "shutdown", shutdownPeriods)
	const log = "/var/log/pods-ends/ends"
	starts := []string{"critical starts", "plain starts", "stubborn starts"}
	ends := []string{"plain hook", "plain ends", "critical hook", "critical ends"}
	lines := func() []string { return strings.Split(output(t, m, "cat "+log), "\n") }
	powerButton := func(ctx context.Context) error {
		if err := m.Shutdown(ctx); err != nil {
			return err
		}
		return m.Boot(ctx)
	}
	for round, reboot := range []func(context.Context) error{m.Reboot, powerButton} {
		waitFor(t, m, 600, "[ \"$(grep -sc starts "+log+")\" = 3 ]")
		waitFor(t, m, 60, waitForInhibitor)
		require.ElementsMatch(t, starts, lines(), "round %d", round)
		output(t, m, "rm "+log+" && sync")

		require.NoError(t, reboot(t.Context()))
		waitFor(t, m, 600, "[ \"$(grep -sc starts "+log+")\" = 3 ]")
		after := lines()
		require.Equal(t, ends, after[:len(ends)], "round %d: the Pods end in order, with their hooks", round)
		require.ElementsMatch(t, starts, after[len(ends):], "round %d: the Pods come back", round)
		t.Log(output(t, m, "journalctl --no-pager -o cat -u kubelet -b -1 | grep 'the machine may shut down'"))
		// What has started counts for the next round.
		output(t, m, "tail -n +"+strconv.Itoa(len(ends)+1)+" "+log+" > "+log+".new && mv "+log+".new "+log)
	}
}
