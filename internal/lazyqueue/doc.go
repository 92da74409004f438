// Package lazyqueue has a work queue that starts no goroutine before its owner starts. A workqueue of client-go starts
// several in its constructor, and a constructor must leave nothing running.
package lazyqueue
