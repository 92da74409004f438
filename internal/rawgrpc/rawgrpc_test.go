package rawgrpc_test

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/internal/rawgrpc"
)

func TestBytesGoThroughAsTheyAre(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodec(rawgrpc.Codec{}), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			var message rawgrpc.Message
			if err := stream.RecvMsg(&message); err != nil {
				return err
			}
			message.Data = append(message.Data, 0xff)
			return stream.SendMsg(&message)
		}))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawgrpc.Codec{})))
	require.NoError(t, err)
	var answer rawgrpc.Message
	require.NoError(t, conn.Invoke(t.Context(), "/any.Service/Call", &rawgrpc.Message{Data: []byte{0, 1, 2}}, &answer))
	require.Equal(t, []byte{0, 1, 2, 0xff}, answer.Data)
	require.ErrorContains(t, conn.Invoke(t.Context(), "/any.Service/Call", "text", &answer), "want a *rawgrpc.Message, got a string")
	require.NoError(t, conn.Close())
	server.Stop()
	require.NoError(t, <-served)

	buffer := []byte("a")
	require.NoError(t, rawgrpc.Codec{}.Unmarshal(buffer, &answer))
	buffer[0] = 'b'
	require.Equal(t, "a", string(answer.Data), "gRPC uses its buffer again")
	require.Error(t, rawgrpc.Codec{}.Unmarshal(buffer, &buffer))
}
