package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestAWarningThatRepeatsIsSaidOnce: a Pod whose image cannot be pulled is retried every few seconds, forever.
func TestAWarningThatRepeatsIsSaidOnce(t *testing.T) {
	var printed []string
	printf := func(format string, args ...any) { printed = append(printed, fmt.Sprintf(format, args...)) }
	p := &eventPrinter{printf: printf}
	for range 3 {
		p.Event(nil, corev1.EventTypeWarning, "ErrImageNeverPull", "not there")
		p.Event(nil, corev1.EventTypeWarning, "MissingClusterDNS", "not printed")
		p.Event(nil, corev1.EventTypeNormal, "Created", "container")
	}
	p.Eventf(nil, corev1.EventTypeWarning, "BackOff", "back-off %ds", 10)
	p.Eventf(nil, corev1.EventTypeWarning, "BackOff", "back-off %ds", 20)
	require.Equal(t, []string{
		"ErrImageNeverPull: not there; import it with --image-archive, or set imagePullPolicy to IfNotPresent",
		"BackOff: back-off 10s", "BackOff: back-off 20s",
	}, printed)
	printed, p = nil, &eventPrinter{printf: printf, all: true}
	for range 2 {
		p.Event(nil, corev1.EventTypeNormal, "Created", "container")
	}
	require.Len(t, printed, 2, "all of them, where they were asked for")
}
