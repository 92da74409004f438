package page_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/page"
)

// start is the time of the tests' clocks.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newServer returns a server of a cluster with one Pod, which waits.
func newServer(t *testing.T) (*page.Server, *testclock.FakeClock) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "a"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	clock := testclock.NewFakeClock(start)
	server, err := page.New(page.Deps{Connect: func() (kubernetes.Interface, error) { return fake.NewClientset(pod), nil }, Logger: slog.New(slog.DiscardHandler), Clock: clock},
		page.Config{Address: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8099}, Cluster: "test"})
	require.NoError(t, err)
	return server, clock
}

// request is one request to the page.
type request struct {
	method, target, host string
	header               map[string]string
	cookie               *http.Cookie
}

func (q request) send(t *testing.T, server *page.Server) *http.Response {
	t.Helper()
	if q.method == "" {
		q.method = http.MethodGet
	}
	r := httptest.NewRequestWithContext(t.Context(), q.method, q.target, http.NoBody)
	r.Host = "127.0.0.1:8099"
	if q.host != "" {
		r.Host = q.host
	}
	for name, value := range q.header {
		r.Header.Set(name, value)
	}
	if q.cookie != nil {
		r.AddCookie(q.cookie)
	}
	recorder := httptest.NewRecorder()
	server.Handler().ServeHTTP(recorder, r)
	return recorder.Result()
}

// path returns the link without its host.
func path(t *testing.T, link string) string {
	t.Helper()
	parsed, err := url.Parse(link)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8099", parsed.Host)
	return parsed.RequestURI()
}

// enter uses a link and returns the cookie.
func enter(t *testing.T, server *page.Server) *http.Cookie {
	t.Helper()
	response := request{target: path(t, server.URL())}.send(t, server)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Len(t, response.Cookies(), 1)
	cookie := response.Cookies()[0]
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	return cookie
}

func TestALinkWorksOnce(t *testing.T) {
	server, clock := newServer(t)
	link := path(t, server.URL())
	head := request{method: http.MethodHead, target: link}.send(t, server)
	require.Equal(t, http.StatusOK, head.StatusCode)
	require.Empty(t, head.Cookies(), "a check of the link is not its use")
	require.Equal(t, http.StatusOK, request{target: link}.send(t, server).StatusCode)
	require.Equal(t, http.StatusUnauthorized, request{target: link}.send(t, server).StatusCode, "used")
	require.Equal(t, http.StatusUnauthorized, request{target: "/?token=wrong"}.send(t, server).StatusCode)
	require.Equal(t, http.StatusUnauthorized, request{target: "/"}.send(t, server).StatusCode, "no session")

	late := path(t, server.URL())
	clock.Step(15 * time.Minute)
	require.Equal(t, http.StatusUnauthorized, request{target: late}.send(t, server).StatusCode, "expired")

	cookie := enter(t, server)
	require.Equal(t, http.StatusOK, request{target: "/", cookie: cookie}.send(t, server).StatusCode)
	require.Equal(t, http.StatusOK, request{method: http.MethodHead, target: "/events?page=/", cookie: cookie}.send(t, server).StatusCode, "it ends")
	clock.Step(12 * time.Hour)
	require.Equal(t, http.StatusUnauthorized, request{target: "/", cookie: cookie}.send(t, server).StatusCode, "the session has expired")
}

func TestOnlyThePageItselfReadsThePage(t *testing.T) {
	server, _ := newServer(t)
	cookie := enter(t, server)
	for name, test := range map[string]struct {
		request
		code int
	}{
		"DNS rebinding":          {request{target: "/", host: "evil.example:8099"}, http.StatusMisdirectedRequest},
		"another port's host":    {request{target: "/", host: "127.0.0.1:9000"}, http.StatusMisdirectedRequest},
		"localhost":              {request{target: "/", host: "localhost:8099"}, http.StatusOK},
		"foreign origin":         {request{target: "/events?page=/", header: map[string]string{"Origin": "http://evil.example"}}, http.StatusForbidden},
		"origin of another port": {request{target: "/", header: map[string]string{"Origin": "http://127.0.0.1:9000"}}, http.StatusForbidden},
		"own origin":             {request{target: "/", header: map[string]string{"Origin": "http://127.0.0.1:8099"}}, http.StatusOK},
		"null origin":            {request{target: "/", header: map[string]string{"Origin": "null"}}, http.StatusForbidden},
		"other site":             {request{target: "/", header: map[string]string{"Sec-Fetch-Site": "cross-site"}}, http.StatusForbidden},
		"other port's page":      {request{target: "/", header: map[string]string{"Sec-Fetch-Site": "same-site"}}, http.StatusForbidden},
		"write":                  {request{target: "/", method: http.MethodPost}, http.StatusMethodNotAllowed},
		"no such page":           {request{target: "/secrets"}, http.StatusNotFound},
		"no such Pod":            {request{target: "/pod/shop/none"}, http.StatusNotFound},
		"Pod":                    {request{target: "/pod/shop/web"}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			test.cookie = cookie
			response := test.send(t, server)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.Equal(t, test.code, response.StatusCode, string(body))
			require.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'")
			require.Equal(t, "no-referrer", response.Header.Get("Referrer-Policy"))
		})
	}
}

func TestALinkLeadsOnWithinThePageOnly(t *testing.T) {
	server, _ := newServer(t)
	for to, want := range map[string]string{"/pod/shop/web": "/pod/shop/web", "//evil.example": "/", "https://evil.example": "/", `/\evil.example`: "/"} {
		response := request{target: path(t, server.URL()) + "&to=" + url.QueryEscape(to), header: map[string]string{
			"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}}.send(t, server)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode, "a link may stand anywhere")
		require.Contains(t, string(body), `content="0;url=`+want+`"`, to)
	}
}

func TestThePageIsCompleteWithoutAScript(t *testing.T) {
	server, _ := newServer(t)
	cookie := enter(t, server)
	for target, want := range map[string]string{
		"/": "pod shop/web", "/pod/shop/web": "<h1>web</h1>", "/cluster": "<h1>Cluster", "/compare": "No running berth was found",
		"/search?q=nothing": "Nothing found", "/static/style.css": ":root", "/static/app.js": "EventSource",
	} {
		response := request{target: target, cookie: cookie}.send(t, server)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.Contains(t, string(body), want, target)
		require.NotContains(t, string(body), "style=", "the policy forbids inline styles")
		require.False(t, strings.Contains(string(body), "<script>"), "the policy forbids inline scripts")
	}
	found := request{target: "/search?q=web", cookie: cookie}.send(t, server)
	require.Equal(t, "/pod/shop/web", found.Header.Get("Location"), "one object is shown at once")
}

func TestThePageCannotChangeAnything(t *testing.T) {
	var methods []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		methods = append(methods, r.Method)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind": "Pod", "apiVersion": "v1"}`)
	}))
	defer server.Close()
	client, err := page.NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	_, err = client.CoreV1().Pods("shop").Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	err = client.CoreV1().Pods("shop").Delete(t.Context(), "web", metav1.DeleteOptions{})
	require.ErrorContains(t, err, "the page only reads")
	require.Equal(t, []string{http.MethodGet}, methods)
}
