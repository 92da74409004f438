package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-dev/berth/vm"
)

// TestOnlyTheScriptsExitCodeIsPassedOn: what fails beside the script, such as a copy, has an exit code of its own, and is printed.
func TestOnlyTheScriptsExitCodeIsPassedOn(t *testing.T) {
	copied := fmt.Errorf("copy /missing: %w", &vm.ExitError{Code: 2})
	for _, test := range []struct {
		script, after error
		code          int
		message       string
	}{
		{nil, nil, 0, ""},
		{&vm.ExitError{Code: 3}, nil, 3, ""},
		{nil, copied, exitFailed, "copy /missing: exit code 2"},
		{&vm.ExitError{Code: 3}, copied, 3, "copy /missing: exit code 2"},
		{errors.New("the connection is lost"), nil, exitFailed, "the connection is lost"},
	} {
		code, err := outcome(test.script, test.after)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if code != test.code || message != test.message {
			t.Errorf("%v, %v: code %d, %q", test.script, test.after, code, message)
		}
	}
}

func TestACopyNamesBothPaths(t *testing.T) {
	for _, wrong := range []string{"/logs", ":out", "/logs:", "logs:out"} {
		if _, _, err := parse([]string{"-copy", wrong, "true"}); err == nil {
			t.Errorf("-copy %s is accepted", wrong)
		}
	}
	if s, _, err := parse([]string{"-copy", "/logs:out", "true"}); err != nil || s.copyFrom != "/logs" || s.copyTo != "out" {
		t.Errorf("-copy /logs:out: %+v, %v", s, err)
	}
}
