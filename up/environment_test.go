package up

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChildrenGetNoCredentials(t *testing.T) {
	require.Equal(t, []string{"PATH=/bin", "LC_ALL=C", "https_proxy=http://p", "OTEL_SERVICE_NAME=x"}, cleanEnvironment([]string{
		"PATH=/bin", "AWS_SECRET_ACCESS_KEY=canary", "LC_ALL=C", "https_proxy=http://p", "KUBECONFIG=/root/x", "OTEL_SERVICE_NAME=x",
		"GITHUB_TOKEN=canary", "LD_PRELOAD=/tmp/x.so",
	}))
}

func TestNodeProcessDoesNotNotify(t *testing.T) {
	require.Equal(t, []string{"A=1", "INVOCATION_ID=x"}, withoutNotification([]string{
		"A=1", "NOTIFY_SOCKET=/run/systemd/notify", "WATCHDOG_USEC=1", "WATCHDOG_PID=1", "INVOCATION_ID=x",
	}))
}
