package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/nodeshutdown"
	"github.com/berth-dev/berth/kubelet/settings"
)

// shutdownFlags say how long Pods have to end when the machine shuts down. They are named as the kubelet's fields.
type shutdownFlags struct{ all, critical time.Duration }

func (s *shutdownFlags) add(f *pflag.FlagSet) {
	f.DurationVar(&s.all, "shutdown-grace-period", 0, "delay the shutdown of a machine with systemd until the Pods have ended, at most for so long;\n"+
		"their phase is Failed then, so that their controllers replace them (0: do not delay it)")
	f.DurationVar(&s.critical, "shutdown-grace-period-critical-pods", 0, "the last part of --shutdown-grace-period, for critical Pods")
}

// periods returns what the flags say.
func (s *shutdownFlags) periods() ([]nodeshutdown.Period, error) {
	for _, flag := range []struct {
		name  string
		value time.Duration
	}{{"--shutdown-grace-period", s.all}, {"--shutdown-grace-period-critical-pods", s.critical}} {
		if flag.value != 0 && flag.value < time.Second {
			return nil, usageError{fmt.Errorf("%s %s: want 0, or 1s or more", flag.name, flag.value)}
		}
	}
	if s.critical > s.all {
		return nil, usageError{fmt.Errorf("--shutdown-grace-period-critical-pods %s: want at most --shutdown-grace-period, which is %s", s.critical, s.all)}
	}
	return nodeshutdown.TwoPeriods(s.all, s.critical), nil
}

// set copies the flags into the configuration.
func (s *shutdownFlags) set(c *settings.Configuration) error {
	if _, err := s.periods(); err != nil {
		return err
	}
	c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods = metav1.Duration{Duration: s.all}, metav1.Duration{Duration: s.critical}
	return nil
}
