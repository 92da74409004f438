package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestCheckpoint(t *testing.T) {
	f := start(t)
	var got *runtimeapi.CheckpointContainerRequest
	var fail error
	f.runtime.checkpoint = func(req *runtimeapi.CheckpointContainerRequest) error {
		got = req
		return fail
	}
	tests := []struct {
		user, method, path string
		fail               error
		want               int
		body               string
	}{
		{"admin", "POST", "ns/web/app?timeout=7", nil, 200, `{"items":["/checkpoints/one.tar"]}`},
		{"admin", "POST", "ns/web/app", status.Error(codes.Unknown, "criu binary not found"), 500,
			`checkpoint container "app" of Pod "ns/web" (rpc error: code = Unknown desc = criu binary not found); install criu in the runtime's PATH`},
		{"admin", "POST", "ns/web/app", status.Error(codes.Unknown, "no space left"), 500,
			`checkpoint container "app" of Pod "ns/web" (rpc error: code = Unknown desc = no space left)`},
		{"admin", "POST", "ns/web/app", status.Error(codes.Unimplemented, "what?"), 404, "what?"},
		{"admin", "POST", "ns/web/tty", nil, 404, "not running"},
		{"admin", "POST", "ns/web/none", nil, 404, `container "none"`},
		{"admin", "POST", "ns/none/app", nil, 404, `pod "none"`},
		{"admin", "POST", "ns/web/app?timeout=soon", nil, 400, "not a number of seconds"},
		{"admin", "GET", "ns/web/app", nil, 405, ""},
		{"reader", "POST", "ns/web/app", nil, 403, "resource=nodes, subresource(s)=[checkpoint]"},
	}
	for _, tt := range tests {
		t.Run(tt.user+" "+tt.method+" "+tt.path+" "+tt.body, func(t *testing.T) {
			got, fail = nil, tt.fail
			code, body := f.do(t, tt.user, tt.method, "/checkpoint/"+tt.path)
			require.Equal(t, tt.want, code, body)
			require.Contains(t, body, tt.body)
			require.Equal(t, tt.want == 200 || tt.fail != nil, got != nil, "whether the runtime was asked")
			if tt.want == 200 {
				require.Equal(t, "c1", got.ContainerId)
				require.Equal(t, "/checkpoints/one.tar", got.Location)
				require.EqualValues(t, 7, got.Timeout)
			}
		})
	}
}
