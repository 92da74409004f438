// Package testwatch has a watch for fake clientsets that hands out copies. It is for tests.
//
// A fake clientset gives the objects of what has changed since a list as it has them itself, and informers change what they get.
package testwatch
