package reconciler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/attachdetach/cache"
)

func TestDecideDetach(t *testing.T) {
	const limit, grace = 6 * time.Minute, 40 * time.Second
	l := limits{maxWaitForUnmount: limit, nodeGoneGrace: grace}
	ready, unready := nodeFacts{known: true, ready: true}, nodeFacts{known: true}
	for _, test := range []struct {
		name  string
		facts detachFacts
		never bool
		want  decision
	}{
		{name: "unmounted", facts: detachFacts{node: ready}, want: decision{action: actionDetach, verify: true}},
		{name: "unmounted after the timeout is no force (B-10)", facts: detachFacts{node: unready, elapsed: 2 * limit},
			want: decision{action: actionDetach, verify: true}},
		{name: "mounted", facts: detachFacts{mounted: true, node: ready}, want: decision{action: actionRequeue, after: limit + 1}},
		{name: "at the timeout", facts: detachFacts{mounted: true, elapsed: limit}, want: decision{action: actionRequeue, after: 1}},
		{name: "past the timeout", facts: detachFacts{mounted: true, elapsed: limit + 1},
			want: decision{action: actionDetach, reason: reasonTimeout}},
		{name: "past it, not ready", facts: detachFacts{mounted: true, elapsed: limit + 1, node: unready},
			want: decision{action: actionDetach, reason: reasonTimeout}},
		{name: "past it, ready", facts: detachFacts{mounted: true, elapsed: limit + 1, node: ready}},
		{name: "past it, never forced", facts: detachFacts{mounted: true, elapsed: limit + 1, node: unready}, never: true},
		{name: "taint", facts: detachFacts{mounted: true, node: nodeFacts{known: true, ready: true, outOfService: true}}, never: true,
			want: decision{action: actionDetach, reason: reasonOutOfService}},
		{name: "gone just now", facts: detachFacts{mounted: true, node: nodeFacts{known: true, gone: true, goneFor: grace - 1}},
			want: decision{action: actionRequeue, after: 1}},
		{name: "gone for its lease", facts: detachFacts{mounted: true, node: nodeFacts{known: true, gone: true, goneFor: grace}},
			never: true, want: decision{action: actionDetach, verify: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l.forceDisabled = test.never
			require.Equal(t, test.want, decideDetach(test.facts, l))
		})
	}
}

func TestDecideAttach(t *testing.T) {
	for _, test := range []struct {
		facts attachFacts
		want  action
	}{
		{attachFacts{state: cache.AttachStateAttached, elsewhere: true}, actionNone},
		{attachFacts{state: cache.AttachStateDetached}, actionAttach},
		{attachFacts{state: cache.AttachStateUncertain}, actionAttach},
		{attachFacts{state: cache.AttachStateDetached, elsewhere: true}, actionReportMultiAttach},
		{attachFacts{state: cache.AttachStateUncertain, elsewhere: true}, actionReportMultiAttach},
		{attachFacts{state: cache.AttachStateDetached, elsewhere: true, shareable: true}, actionAttach},
		{attachFacts{state: cache.AttachStateUncertain, elsewhere: true, undecided: true}, actionAttach},
		{attachFacts{state: cache.AttachStateDetached, elsewhere: true, undecided: true}, actionReportMultiAttach},
		{attachFacts{state: cache.AttachStateAttached, elsewhere: true, undecided: true}, actionNone},
	} {
		require.Equal(t, test.want, decideAttach(test.facts).action, "%+v", test.facts)
	}
}
