//go:build integration

package integration

import "fmt"

// frame is a message that a proxy passes on without looking into it, and frames the codec that leaves it as it is.
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
	message.data = append([]byte(nil), data...)
	return nil
}
