// Package rotate limits the size and number of the log files of running containers: a file that is too large is
// renamed, older ones are compressed, and the oldest are removed. What it has to do follows from the files alone.
//
// A container that writes nothing costs nothing: the kernel reports its next write. While it writes, its log is checked the
// more often the sooner it will be full.
package rotate
