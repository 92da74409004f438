package main

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/nodeshutdown"
)

func TestShutdownFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want []nodeshutdown.Period
		err  string
	}{
		{nil, nil, ""},
		{[]string{"--shutdown-grace-period=30s"}, []nodeshutdown.Period{{Grace: 30 * time.Second}, {Priority: 2_000_000_000}}, ""},
		{[]string{"--shutdown-grace-period=30s", "--shutdown-grace-period-critical-pods=10s"},
			[]nodeshutdown.Period{{Grace: 20 * time.Second}, {Priority: 2_000_000_000, Grace: 10 * time.Second}}, ""},
		{[]string{"--shutdown-grace-period=30ms"}, nil, "--shutdown-grace-period 30ms: want 0, or 1s or more"},
		{[]string{"--shutdown-grace-period-critical-pods=10s"}, nil, "want at most --shutdown-grace-period, which is 0s"},
		{[]string{"--shutdown-grace-period=-1s"}, nil, "--shutdown-grace-period -1s: want 0, or 1s or more"},
	} {
		var s shutdownFlags
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		s.add(flags)
		require.NoError(t, flags.Parse(test.args))
		got, err := s.periods()
		if test.err != "" {
			require.ErrorContains(t, err, test.err)
			require.ErrorAs(t, err, &usageError{})
			continue
		}
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
}
