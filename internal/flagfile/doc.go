// Package flagfile sets the flags of a command from a YAML file with one key for each flag, and writes such a file.
package flagfile
