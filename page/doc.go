// Package page shows a cluster in the browser: what is not running and why, the way of one object as a picture, and how long
// each stage takes. Pages are complete without a script; a small one keeps them current by
// server-sent events.
package page
