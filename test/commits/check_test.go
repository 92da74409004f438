package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestLogIsReadLineByLine(t *testing.T) {
	numbers, err := parseLog(strings.NewReader("1\n3\n2\n4"), -1)
	if err != nil || fmt.Sprint(numbers) != "[1 3 2]" {
		t.Errorf("a line without its end does not count: %v, %v", numbers, err)
	}
	numbers, err = parseLog(strings.NewReader("1\n3\n2\n"), 2)
	if err != nil || fmt.Sprint(numbers) != "[1 3]" {
		t.Errorf("the first two lines: %v, %v", numbers, err)
	}
	for text, lines := range map[string]int{"1\n": 2, "1\nx\n": -1, "1\n\n": -1} {
		if numbers, err := parseLog(strings.NewReader(text), lines); err == nil {
			t.Errorf("%d lines of %q: %v", lines, text, numbers)
		}
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	good := func() *table { return &table{rows: 3, times: map[int64]int{1: 1, 2: 1, 7: 1}} }
	if err := good().compare([]int64{1, 2}); err != nil {
		t.Errorf("7 was committed without a response: %v", err)
	}
	for want, change := range map[string]func(*table){
		"1 acknowledged commits are lost, such as [2]":   func(t *table) { delete(t.times, 2) },
		"1 commits exist twice, such as [1]":             func(t *table) { t.times[1] = 2 },
		"1 commits have another content, such as [7]":    func(t *table) { t.wrong = []int64{7} },
		"2 acknowledged commits are lost, such as [1 2]": func(t *table) { clear(t.times) },
	} {
		bad := good()
		change(bad)
		if err := bad.compare([]int64{1, 2}); err == nil || err.Error() != want {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if content(1) == content(2) {
		t.Error("the content follows from the number")
	}
}

func TestDamageIsNoFailureToCheck(t *testing.T) {
	for err, unsound := range map[error]bool{
		fmt.Errorf("%w: lost", errUnsound):                     true,
		fmt.Errorf("read: %w", &pgconn.PgError{Code: "XX001"}): true,
		fmt.Errorf("read: %w", &pgconn.PgError{Code: "57P03"}): false,
		errors.New("connection refused"):                       false,
	} {
		if isUnsound(err) != unsound {
			t.Errorf("%v: want %t", err, unsound)
		}
	}
}
