package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/server"
)

// The protocols by which a request reaches the kubelet.
var protocols = []string{"HTTP/1.1", "h2", "WebSocket", "SPDY"}

// needed is what the table says of one path: the subresources of nodes, any of which suffices, and the verb by the method.
type needed struct {
	path         string
	subresources []string
	create       bool // whatever the method, it runs something: the verb is never get
}

// readMatrix reads testdata/authorization.txt.
func readMatrix(t *testing.T) []needed {
	t.Helper()
	file, err := os.Open("testdata/authorization.txt")
	require.NoError(t, err)
	defer file.Close()
	var rows []needed
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		require.GreaterOrEqual(t, len(fields), 2, lines.Text())
		rows = append(rows, needed{path: fields[0], subresources: strings.Split(fields[1], ","), create: slices.Contains(fields[2:], "create")})
	}
	require.Greater(t, len(rows), 20)
	return rows
}

// TestAuthorizationMatrix sends every path of the table, with every method, by every protocol, to a real server, and compares who is let
// in with the table: each right that the table names suffices alone, and all other rights together do not.
func TestAuthorizationMatrix(t *testing.T) {
	verbs := map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "HEAD": "", "OPTIONS": "", "TRACE": ""}
	f := start(t, func(_ *server.Config, deps *server.Deps) {
		deps.Auth = server.Auth{Authenticator: authenticator.RequestFunc(identityOfHeader), Authorizer: rightsOfName{}}
	})
	f.runtime.checkpoint = func(*runtimeapi.CheckpointContainerRequest) error { return nil }
	f.host.logs = func(context.Context, *corev1.PodLogOptions, io.Writer, io.Writer) error { return nil }
	one, two := f.as(t, ""), f.as(t, "")
	two.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	clients := map[bool]*http.Client{false: one, true: two}

	for _, row := range readMatrix(t) {
		for method, verb := range verbs {
			for _, protocol := range protocols {
				if protocol == "WebSocket" && method != "GET" || protocol == "SPDY" && method != "GET" && method != "POST" {
					continue // these methods begin no such stream
				}
				if row.create && verb == "get" {
					verb = "create"
				}
				says := fmt.Sprintf("%s %s by %s", method, row.path, protocol)
				code, body := f.reply(t, clients, protocol, method, row.path, "")
				require.Equal(t, http.StatusUnauthorized, code, "%s without an identity", says)
				for _, subresource := range row.subresources {
					if verb != "" {
						code, body := f.reply(t, clients, protocol, method, row.path, only+verb+" "+subresource)
						require.NotContains(t, body, "Forbidden (user=", "%s with %s nodes/%s", says, verb, subresource)
						require.NotEqual(t, http.StatusUnauthorized, code, "%s with %s nodes/%s", says, verb, subresource)
					}
				}
				code, body = f.reply(t, clients, protocol, method, row.path, allBut+verb+" "+strings.Join(row.subresources, ","))
				require.Equal(t, http.StatusForbidden, code, "%s with all rights but to %s nodes/%v", says, verb, row.subresources)
				require.True(t, method == "HEAD" || strings.Contains(body, "Forbidden (user="), says)
			}
		}
	}
}

// reply sends a request as an identity and returns the status and the beginning of the body, of a stream none.
func (f *fixture) reply(t *testing.T, clients map[bool]*http.Client, protocol, method, path, right string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.base+path, nil)
	require.NoError(t, err)
	if right != "" {
		req.Header.Set("X-Right", right)
	}
	switch protocol {
	case "WebSocket":
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
		req.Header.Set("Sec-WebSocket-Version", "13")
		req.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		req.Header.Set("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
	case "SPDY":
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "SPDY/3.1")
		req.Header.Set("X-Stream-Protocol-Version", "v4.channel.k8s.io")
	}
	resp, err := clients[protocol == "h2"].Do(req)
	require.NoError(t, err, "%s %s by %s", method, path, protocol)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, ""
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	require.NoError(t, err)
	return resp.StatusCode, string(start)
}

// identityOfHeader authenticates whoever names a right.
func identityOfHeader(r *http.Request) (*authenticator.Response, bool, error) {
	right := r.Header.Get("X-Right")
	return &authenticator.Response{User: &user.DefaultInfo{Name: right}}, right != "", nil
}

// The names of identities: with one right, or with all rights except some.
const only, allBut = "only ", "all but "

// rightsOfName allows each identity what its name says.
type rightsOfName struct{}

// Authorize implements authorizer.Authorizer.
func (rightsOfName) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetResource() != "nodes" || a.GetName() != "n1" || a.GetAPIGroup() != "" || !a.IsResourceRequest() {
		return authorizer.DecisionDeny, "", fmt.Errorf("not of this node: %v", a)
	}
	right, except := strings.CutPrefix(a.GetUser().GetName(), allBut)
	verb, subresources, _ := strings.Cut(strings.TrimPrefix(right, only), " ")
	named := a.GetVerb() == verb && slices.Contains(strings.Split(subresources, ","), a.GetSubresource())
	if named != except {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}
