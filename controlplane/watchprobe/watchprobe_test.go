package watchprobe_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/watchprobe"
)

// stubTransport is a transport with one response.
type stubTransport struct {
	status int
	err    error
}

func (a stubTransport) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Body: http.NoBody}, nil
}

func TestOnlyAcceptedWatchIsSeen(t *testing.T) {
	tests := []struct {
		name, query string
		answer      stubTransport
		want        int
	}{
		{"watch", "?watch=true", stubTransport{status: 200}, 1},
		{"list", "?limit=500", stubTransport{status: 200}, 0},
		{"forbidden watch", "?watch=true", stubTransport{status: 403}, 0},
		{"no server", "?watch=true", stubTransport{err: errors.New("refused")}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := 0
			wrap := watchprobe.Wrap(func() { seen++ })
			for range 2 { // two clients, two requests: still once
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api/v1/pods"+tt.query, nil)
				require.NoError(t, err)
				response, err := wrap(tt.answer).RoundTrip(request)
				require.ErrorIs(t, err, tt.answer.err)
				if err == nil {
					require.Equal(t, tt.answer.status, response.StatusCode)
					require.NoError(t, response.Body.Close())
				}
			}
			require.Equal(t, tt.want, seen)
		})
	}
}
