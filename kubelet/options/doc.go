// Package options reads the command line and the configuration files of a kubelet, as upstream's kubelet 1.36 does.
//
// [Parse] reads the flags, then the file of --config, then the drop-in files of --config-dir in the order of their names, each
// over those before it, and at last the flags again, which come before all files. Files are decoded strictly. What becomes of a
// value is decided by package settings.
package options
