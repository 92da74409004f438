package main

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/terminaltext"
	"github.com/berth-dev/berth/kubelet/images"
)

// eventPrinter prints events to the terminal: warnings, or all. A warning that repeats the last one of its reason is
// printed once, because persistent failures (an image that does not exist) are retried every few seconds. It is safe
// for concurrent use.
type eventPrinter struct {
	printf func(format string, args ...any)
	all    bool

	mu           sync.Mutex
	lastMessages map[string]string // the last message of each reason
}

var _ record.EventRecorder = (*eventPrinter)(nil)

// Event implements record.EventRecorder.
func (p *eventPrinter) Event(_ runtime.Object, kind, reason, message string) {
	// A Pod without a cluster never has cluster DNS: that is no reason for a warning.
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
	p.printf("%s: %s%s", reason, terminaltext.Lines(message), remedies[reason])
}

// remedies say what to do about events, in terms of `berth run`.
var remedies = map[string]string{
	images.ReasonNeverPull: "; import it with --image-archive, or set imagePullPolicy to IfNotPresent",
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
