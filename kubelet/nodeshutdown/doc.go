// Package nodeshutdown delays the shutdown of the machine until the node's Pods have ended: it holds an inhibitor lock of
// systemd-logind, and ends the Pods by priority when logind announces a shutdown.
package nodeshutdown
