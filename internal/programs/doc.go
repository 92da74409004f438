// Package programs finds the programs that berth starts.
package programs
