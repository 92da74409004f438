package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask sends one request to a demo over dir and returns status and body.
func ask(dir, method, path string) (int, string) {
	answer := httptest.NewRecorder()
	handler(&counter{dir: dir}, "pod-1").ServeHTTP(answer, httptest.NewRequest(method, path, nil))
	return answer.Code, answer.Body.String()
}

func TestCountsOnTheVolume(t *testing.T) {
	dir := t.TempDir()
	code, body := ask(dir, "GET", "/count")
	require.Equal(t, 200, code)
	require.Equal(t, "0\n", body)

	code, body = ask(dir, "GET", "/")
	require.Equal(t, 200, code)
	require.Contains(t, body, `<span class="count">1</span>`)
	require.Contains(t, body, "pod-1")
	// Another process over the same volume goes on where this one was.
	_, body = ask(dir, "GET", "/")
	require.Contains(t, body, `<span class="count">2</span>`)
	_, _ = ask(dir, "HEAD", "/")
	_, _ = ask(dir, "GET", "/healthz")
	_, body = ask(dir, "GET", "/count")
	require.Equal(t, "2\n", body)

	code, _ = ask(dir, "GET", "/favicon.ico")
	require.Equal(t, 404, code)
	code, _ = ask(dir, "POST", "/")
	require.Equal(t, 405, code)

	data, err := os.ReadFile(filepath.Join(dir, "count"))
	require.NoError(t, err)
	require.Equal(t, "2\n", string(data))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary files stay")
}

func TestBrokenCountFileIsReportedAndKept(t *testing.T) {
	for name, content := range map[string]string{
		"not a number": "many\n", "empty": "", "negative": "-1\n", "spaces": " 7\n",
		"too large": "99999999999999999999\n", "full": "18446744073709551615\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "count")
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			code, body := ask(dir, "GET", "/")
			require.Equal(t, 500, code)
			require.Contains(t, body, file)
			kept, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, content, string(kept))
		})
	}
}

func TestMissingVolumeIsUnhealthy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "absent")
	for _, path := range []string{"/", "/count", "/healthz"} {
		code, body := ask(dir, "GET", path)
		require.Equal(t, 500, code, path)
		require.Contains(t, body, dir, path)
	}
}

func TestConcurrentVisitsAreAllCounted(t *testing.T) {
	c := &counter{dir: t.TempDir()}
	h := handler(c, "")
	var visits sync.WaitGroup
	for range 50 {
		visits.Go(func() {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		})
	}
	visits.Wait()
	n, err := c.Value()
	require.NoError(t, err)
	require.EqualValues(t, 50, n)
}

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		env  map[string]string
		want options
		err  string
	}{
		"defaults":      {want: options{port: 8080, dataDir: "/data"}},
		"environment":   {env: map[string]string{"PORT": "9", "DATA_DIR": "/d"}, want: options{port: 9, dataDir: "/d"}},
		"flag wins":     {args: []string{"-port=7"}, env: map[string]string{"PORT": "9"}, want: options{port: 7, dataDir: "/data"}},
		"bad PORT":      {env: map[string]string{"PORT": "http"}, err: `PORT "http" is not a number`},
		"port range":    {args: []string{"-port=70000"}, err: "port 70000 is not between"},
		"bad flag":      {args: []string{"-prot=7"}, err: "-prot"},
		"argument":      {args: []string{"serve"}, err: `unexpected argument "serve"`},
		"version alone": {args: []string{"-v"}, want: options{port: 8080, dataDir: "/data", version: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(tt.args, func(key string) string { return tt.env[key] })
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// TestServeFinishesRequestsInFlight ends the server while a request is being answered: it is answered.
func TestServeFinishesRequestsInFlight(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		fmt.Fprint(w, "done")
	})
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, slow) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + listener.Addr().String())
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, "done", string(body))
	require.NoError(t, <-ended)
}

func TestRunSaysWhatIsInTheWay(t *testing.T) {
	listener, err := net.Listen("tcp", ":0")
	require.NoError(t, err)
	defer listener.Close()
	port := strings.TrimPrefix(listener.Addr().String(), "[::]:")
	err = run(t.Context(), []string{"-port", port}, func(string) string { return "" }, io.Discard)
	require.ErrorContains(t, err, "listen on port "+port)
}
