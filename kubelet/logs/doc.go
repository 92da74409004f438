// Package logs reads what containers have written: their log files as the runtime keeps them, for kubectl logs, and
// their termination messages.
//
// A follower waits for the file system's own events and for the end of its container; it never looks on a timer.
package logs
