package options

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/settings"
)

// TestOpenAccess finds configurations with which everyone may use the kubelet's API.
func TestOpenAccess(t *testing.T) {
	for _, c := range []struct {
		want bool
		args []string
	}{
		{true, nil}, // the defaults of Kubernetes without a configuration file
		{false, []string{"--anonymous-auth=false"}},
		{false, []string{"--authorization-mode=Webhook"}},
		{false, []string{"--enable-server=false"}},
	} {
		o, err := parse(c.args...)
		require.NoError(t, err)
		chosen, err := settings.Convert(o.Configuration)
		require.NoError(t, err)
		require.Equal(t, c.want, chosen.OpenAccess(), "%v", c.args)
	}
}
