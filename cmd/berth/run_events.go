package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// eventPrinter shows events to the person at the terminal: warnings, or all.
type eventPrinter struct {
	say func(format string, args ...any)
	all bool
}

var _ record.EventRecorder = (*eventPrinter)(nil)

// Event implements record.EventRecorder.
func (p *eventPrinter) Event(_ runtime.Object, kind, reason, message string) {
	// A Pod without a cluster has no cluster's name servers: nobody is to be warned of that.
	if reason == "MissingClusterDNS" {
		return
	}
	if p.all || kind == corev1.EventTypeWarning {
		p.say("%s: %s", reason, message)
	}
}

// Eventf implements record.EventRecorder.
func (p *eventPrinter) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	p.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (p *eventPrinter) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string,
	args ...any,
) {
	p.Eventf(object, kind, reason, format, args...)
}
