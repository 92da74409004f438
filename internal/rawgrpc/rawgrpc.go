// Package rawgrpc carries gRPC messages that nobody looks into: for proxies, which pass on calls of any service, and for
// servers that answer with bytes of their own.
package rawgrpc

import (
	"fmt"
	"slices"
)

// Message is a message as it is on the wire. Data belongs to whoever has the Message.
type Message struct{ Data []byte }

// Codec sends and receives *Message and nothing else; give it to grpc.ForceServerCodec and grpc.ForceCodec.
type Codec struct{}

// Name implements encoding.Codec: to the peer the messages are protobuf's, as they mostly are.
func (Codec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (Codec) Marshal(v any) ([]byte, error) {
	message, ok := v.(*Message)
	if !ok {
		return nil, fmt.Errorf("send a message as it is: want a *rawgrpc.Message, got a %T", v)
	}
	return message.Data, nil
}

// Unmarshal implements encoding.Codec. It copies, for gRPC uses the buffer again.
func (Codec) Unmarshal(data []byte, v any) error {
	message, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("receive a message as it is: want a *rawgrpc.Message, got a %T", v)
	}
	message.Data = slices.Clone(data)
	return nil
}
