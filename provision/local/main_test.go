package local_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/testleak"
)

func TestMain(m *testing.M) {
	testleak.Verify(m,
		// The kept-alive connection to the real API server, if there is one.
		goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"))
}
