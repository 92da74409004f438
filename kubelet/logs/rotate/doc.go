// Package rotate keeps the log files of running containers within their limits: a file that has grown too large is
// put aside, older ones are packed, the oldest removed. Nothing is kept in memory: what there is to be done follows
// from the files.
package rotate
