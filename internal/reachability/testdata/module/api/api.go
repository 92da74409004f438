// Package api is for other programs.
package api

// Client is exported.
type Client struct{}

// Get is exported.
func (*Client) Get() { get() }

func get() {}

func unused() {}
