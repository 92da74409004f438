package main

import (
	"os"

	"golang.org/x/term"

	"github.com/berth-dev/berth/explain"
)

// style returns the style for standard output: bars and colours on a terminal only, no colours with NO_COLOR.
func style() explain.Style {
	width := terminalWidth()
	return explain.Style{Width: width, Color: width > 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// terminalWidth returns the width of standard output, 0 if it is not a terminal.
func terminalWidth() int {
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		return width
	}
	return 0
}

// terminalWidthFunc returns a function that reads the current width of standard output, nil if it is not a terminal.
func terminalWidthFunc() func() int {
	if !term.IsTerminal(int(os.Stdout.Fd())) {
		return nil
	}
	return terminalWidth
}
