//go:build integration

package integration

import (
	"fmt"
	"slices"
)

// frame is a gRPC message that nobody looks into, and frames the codec that carries it: what the proxies of these tests
// are made of.
type frame struct{ data []byte }

type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) ([]byte, error) {
	message, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("the proxy was given a %T", v)
	}
	return message.data, nil
}

func (frames) Unmarshal(data []byte, v any) error {
	message, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("the proxy was asked for a %T", v)
	}
	message.data = slices.Clone(data)
	return nil
}
