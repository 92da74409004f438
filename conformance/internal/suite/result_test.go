package suite_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/berth-dev/berth/conformance/internal/suite"
)

const (
	podsPass   = "[sig-node] Pods [Feature:X] should run [Conformance]"
	podsFail   = "[sig-node] Pods [Feature:X] should stop [Conformance]"
	secretSkip = "[sig-storage] Secrets should wait [Conformance]"
)

func report() types.Report {
	spec := func(container, leaf string, state types.SpecState, message string) types.SpecReport {
		return types.SpecReport{
			LeafNodeType: types.NodeTypeIt, ContainerHierarchyTexts: []string{container}, LeafNodeText: leaf,
			State: state, Failure: types.Failure{Message: message}, RunTime: time.Second,
		}
	}
	return types.Report{SpecReports: types.SpecReports{
		{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStatePassed},
		spec("[sig-node] Pods [Feature:X]", "should run [Conformance]", types.SpecStatePassed, ""),
		spec("[sig-node] Pods [Feature:X]", "should stop [Conformance]", types.SpecStateFailed, "\nexpected | this\nthat"),
		spec("[sig-storage] Secrets", "should wait [Conformance]", types.SpecStateSkipped, "needs two nodes"),
		spec("[sig-storage] Secrets", "left out by the focus", types.SpecStateSkipped, ""),
	}}
}

func TestVerdict(t *testing.T) {
	broken := types.Report{SpecReports: types.SpecReports{{
		LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStateFailed,
		Failure: types.Failure{Message: "no API server"},
	}}}
	for name, test := range map[string]struct {
		report   types.Report
		expected []string
		complete bool
		want     string
	}{
		"what must pass passed":              {report(), []string{podsPass}, true, ""},
		"a failure beside the list":          {report(), []string{podsPass}, false, ""},
		"a failure of the list":              {report(), []string{podsPass, podsFail}, false, "that must pass failed"},
		"not run, in a run of a part":        {report(), []string{podsPass, secretSkip}, false, ""},
		"not run, in a run of all":           {report(), []string{podsPass, secretSkip}, true, "that must pass did not run"},
		"a name that the suite has not":      {report(), []string{"[sig-node] Nothing"}, false, "are no specs of the suite"},
		"nothing ran":                        {types.Report{}, nil, false, "no spec ran"},
		"the suite failed before its specs":  {broken, nil, false, "no API server"},
		"the suite failed, and nothing else": {broken, []string{podsPass}, true, "the suite is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			err := suite.Evaluate(test.report, test.expected).Verdict(test.complete)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("unexpected: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestReportNamesAreasFailuresAndWhatDidNotRun(t *testing.T) {
	var b strings.Builder
	ran := report()
	ran.SpecReports[1].NumAttempts = 2
	ran.SpecReports[1].AdditionalFailures = []types.AdditionalFailure{
		{Failure: types.Failure{Message: "Failure recorded during attempt 1:\nwas not there yet\nmore"}},
	}
	result := suite.Evaluate(ran, []string{podsPass, podsFail, secretSkip})
	if err := result.WriteReport(&b, suite.Header{
		Command: "run", Expected: 3, List: "expected.txt", Notes: []string{"A note."}, Hide: []string{"expected "},
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"**1 passed, 1 failed, 1 not run.**",
		"Of 3 specs that must pass (expected.txt) 1 did, 1 failed, 1 did not run.",
		"| node: Pods | 1 | 1 | 0 |",
		"| storage: Secrets | 0 | 0 | 1 |",
		podsFail + " (must pass), after 1s",
		"`| this`",
		"A note.",
		podsPass + ", at attempt 2; before that  \n  `was not there yet`",
		secretSkip + ": needs two nodes",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "left out by the focus") {
		t.Errorf("the report names a spec that the focus left out:\n%s", b.String())
	}
}

func TestReasonIsMoreThanTheBeginningOfADump(t *testing.T) {
	for message, want := range map[string]string{
		"plain\nmore": "plain",
		"Verifying. Pod: {\n  \"a\": 1\n}\n: [\nvalue was 1":   "Verifying. Pod: { … value was 1",
		"Timed out after 300.000s.\nExpected Running":          "Timed out after 300.000s. … Expected Running",
		"Expected\n    <string>: a\nto equal\n    <string>: b": "Expected <string>: a to equal <string>: b",
		strings.Repeat("x", 400):                               strings.Repeat("x", 300) + "…",
	} {
		failed := report()
		failed.SpecReports[2].Failure.Message = message
		result := suite.Evaluate(failed, []string{podsFail})
		if got := result.Regressed[0].Reason; got != want {
			t.Errorf("reason of %q is %q, want %q", message, got, want)
		}
	}
}

func TestExactlySelectsTheListAndNoMore(t *testing.T) {
	focus := regexp.MustCompile(suite.Exactly([]string{podsPass, podsFail}))
	for name, want := range map[string]bool{
		podsPass: true, podsFail: true, secretSkip: false, podsPass + " more": false,
	} {
		if got := focus.MatchString("Kubernetes e2e suite " + name); got != want {
			t.Errorf("%q selected: %t, want %t", name, got, want)
		}
	}
}
