// Package lifecycle runs the controllers below provision that follow objects of the API: it waits until the cluster serves the
// objects, starts the recorder of their events, the informers and the workers, and ends all of them when the context ends.
package lifecycle
