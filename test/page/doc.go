// Package page bundles the page's script, and tests the page in a browser on a real cluster.
package page
