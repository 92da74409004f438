// Package terminaltext makes texts of others (container logs, drivers' errors, messages of Events) harmless on a terminal.
package terminaltext
