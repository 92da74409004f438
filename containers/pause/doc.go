// Package pause tests the first process of every pod sandbox, program/pause.c: it holds the pod's namespaces open and reaps the
// processes that the pod's containers leave behind when they share a process namespace.
//
// It opens no file, listens on nothing and sleeps until SIGTERM or SIGINT.
package pause
