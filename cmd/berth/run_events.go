package main

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/kubelet/images"
)

// eventPrinter shows events to the person at the terminal: warnings, or all. A warning that only repeats the last one of its
// reason is said once: what does not heal by itself (an image that is not there) is tried every few seconds. It is safe for
// concurrent use.
type eventPrinter struct {
	printf func(format string, args ...any)
	all    bool

	mu           sync.Mutex
	lastMessages map[string]string // the last message of each reason
}

var _ record.EventRecorder = (*eventPrinter)(nil)

// Event implements record.EventRecorder.
func (p *eventPrinter) Event(_ runtime.Object, kind, reason, message string) {
	// A Pod without a cluster has no cluster's name servers: nobody is to be warned of that.
	if reason == "MissingClusterDNS" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.all && (kind != corev1.EventTypeWarning || p.lastMessages[reason] == message) {
		return
	}
	if p.lastMessages == nil {
		p.lastMessages = map[string]string{}
	}
	p.lastMessages[reason] = message
	p.printf("%s: %s%s", reason, message, remedies[reason])
}

// remedies are what to do about events, in terms of `berth run`.
var remedies = map[string]string{
	images.ReasonNeverPull: "; bring it in with --image-archive, or let imagePullPolicy be IfNotPresent",
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
