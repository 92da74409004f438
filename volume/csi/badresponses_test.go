package csi_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/rawgrpc"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/testsuite"
)

// badDriver serves a driver that responds with the bytes that the test gives. It does not implement calls without a
// response.
func badDriver(t *testing.T, statuses map[string][]byte) string {
	t.Helper()
	path := filepath.Join(testsuite.Root(t), "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodec(rawgrpc.Codec{}), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			if err := stream.RecvMsg(&rawgrpc.Message{}); err != nil {
				return err
			}
			response, ok := statuses[filepath.Base(method)]
			if !ok {
				return status.Error(codes.Unimplemented, "what?")
			}
			return stream.SendMsg(&rawgrpc.Message{Data: response})
		}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-done)
	})
	return path
}

func encode(t *testing.T, message proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(message)
	require.NoError(t, err)
	return data
}

var (
	huge    = make([]byte, 100<<20)
	garbage = []byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3}
)

func TestDriversThatCannotBeReached(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file.sock")
	require.NoError(t, os.WriteFile(file, []byte("this is no socket"), 0o600))
	for name, test := range map[string]struct{ socket, err string }{
		"a file instead of a socket": {file, "connect"},
		"a missing socket":           {file + ".no", "connect"},
		"no node service":            {badDriver(t, nil), "Unimplemented"},
		"100 MiB of capabilities": {badDriver(t, map[string][]byte{"NodeGetCapabilities": huge}),
			"ResourceExhausted"},
		"garbage": {badDriver(t, map[string][]byte{"NodeGetCapabilities": garbage}), "unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := csi.Dial(t.Context(), driverName, "unix://"+test.socket)
			require.ErrorContains(t, err, test.err)
			require.ErrorContains(t, err, `get capabilities of csi driver "`+driverName+`" at "`+test.socket+`"`)
		})
	}
}

func TestDriversThatDoNotKnowTheNode(t *testing.T) {
	able := encode(t, &csipb.NodeGetCapabilitiesResponse{})
	for name, test := range map[string]struct {
		response []byte
		err      string
	}{
		"empty id": {encode(t, &csipb.NodeGetInfoResponse{}), "the node id is empty"},
		"100 MiB":  {huge, "ResourceExhausted"},
		"garbage":  {garbage, "unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			driver, err := csi.Dial(t.Context(), driverName,
				badDriver(t, map[string][]byte{"NodeGetCapabilities": able, "NodeGetInfo": test.response}))
			require.NoError(t, err)
			defer driver.Close()
			_, err = driver.NodeInfo(t.Context())
			require.ErrorContains(t, err, test.err)
			require.ErrorContains(t, err, driverName)
		})
	}
}

// TestResponsesThatCannotBeDecoded: the call has reached the driver, so the volume may be set up, and is torn down like
// one that is.
func TestResponsesThatCannotBeDecoded(t *testing.T) {
	able := encode(t, &csipb.NodeGetCapabilitiesResponse{})
	for name, response := range map[string][]byte{"100 MiB": huge, "garbage": garbage} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			drivers := csi.NewDrivers()
			driver, err := csi.Dial(t.Context(), driverName, badDriver(t, map[string][]byte{
				"NodeGetCapabilities": able, "NodePublishVolume": response, "NodeUnpublishVolume": {},
			}))
			require.NoError(t, err)
			drivers.Add(driver)
			defer drivers.Close()
			plugin := f.startWith(kubefake.NewClientset(f.object), drivers)
			request := f.request("uid", persistent("pv"))
			_, err = plugin.SetUp(t.Context(), request)
			require.ErrorContains(t, err, "csi driver "+driverName+": NodePublishVolume of volume \"pv\"")
			require.True(t, volume.IsUncertain(err), "%v", err)
			require.Less(t, len(err.Error()), 1000, "the message must be readable")
			require.NoError(t, plugin.TearDown(t.Context(), request.Dir))
			require.NoDirExists(t, request.Dir)
		})
	}
}

func TestErrorsOfDriversAreCutShort(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.driver.FailText = strings.Repeat("long ", 1<<16)
	request := f.request("uid", persistent("pv"))
	_, err := f.SetUp(t.Context(), request)
	require.ErrorContains(t, err, "long long")
	require.Less(t, len(err.Error()), 2000, "an event holds one kilobyte")
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
}
