// Package subscribers has the functions that a component calls when something of it has changed, for components whose
// subscribers come and go while it runs.
package subscribers
