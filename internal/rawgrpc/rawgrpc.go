// Package rawgrpc sends and receives gRPC messages without decoding them: for proxies of any service, and for servers that
// respond with raw bytes.
package rawgrpc

import (
	"fmt"
	"slices"
)

// Message is an encoded message. Data belongs to the owner of the Message.
type Message struct{ Data []byte }

// Codec sends and receives *Message and nothing else; give it to grpc.ForceServerCodec and grpc.ForceCodec.
type Codec struct{}

// Name implements encoding.Codec: the peer expects protobuf messages.
func (Codec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (Codec) Marshal(v any) ([]byte, error) {
	message, ok := v.(*Message)
	if !ok {
		return nil, fmt.Errorf("send a message as it is: want a *rawgrpc.Message, got a %T", v)
	}
	return message.Data, nil
}

// Unmarshal implements encoding.Codec. It copies the data, because gRPC reuses the buffer.
func (Codec) Unmarshal(data []byte, v any) error {
	message, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("receive a message as it is: want a *rawgrpc.Message, got a %T", v)
	}
	message.Data = slices.Clone(data)
	return nil
}
