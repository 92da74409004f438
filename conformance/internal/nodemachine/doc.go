// Package nodemachine prepares the directory that a machine needs to run upstream's node suite: programs, images and
// scripts. machine.sh runs the suite in the machine; isolate.sh makes namespaces of this machine look like one.
package nodemachine
