// Package rotate limits the size and number of the log files of running containers: a file that is too large is
// renamed, older ones are compressed, and the oldest are removed. It keeps no state in memory: the work follows from
// the files.
package rotate
