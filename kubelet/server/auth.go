package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
)

// How long results of the API server are cached. A denial is cached for a shorter time, since it is usually being
// fixed.
const (
	tokenTTL      = 2 * time.Minute
	allowTTL      = 5 * time.Minute
	denyTTL       = 30 * time.Second
	reviewTimeout = 10 * time.Second
)

// Auth authenticates and authorizes requests.
type Auth struct {
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Attributes maps requests to what the Authorizer decides about; nil is NodeAttributes.
	Attributes RequestAttributesGetter
}

// NodeAttributes maps requests to subresources of the Node with that name, as Kubernetes' kubelet does.
type NodeAttributes struct{ NodeName string }

var _ RequestAttributesGetter = NodeAttributes{}

// GetRequestAttributes implements RequestAttributesGetter.
func (a NodeAttributes) GetRequestAttributes(_ context.Context, u user.Info, r *http.Request) []authorizer.Attributes {
	verb, subresources := attributesOf(r)
	out := make([]authorizer.Attributes, 0, len(subresources))
	for _, subresource := range subresources {
		out = append(out, authorizer.AttributesRecord{
			User: u, Verb: verb, APIGroup: "", APIVersion: "v1", Resource: "nodes", Subresource: subresource, Name: a.NodeName,
			ResourceRequest: true,
		})
	}
	return out
}

// AuthDeps are what NewDelegatedAuth works with.
type AuthDeps struct {
	// Client sends reviews to the API server.
	Client kubernetes.Interface
	// Logger may be nil.
	Logger *slog.Logger
}

// AuthConfig are the values of NewDelegatedAuth.
type AuthConfig struct {
	// ClientCAFile contains the CAs of client certificates, in PEM form. It is read again when it is replaced. If
	// empty, only bearer tokens are accepted.
	ClientCAFile string
	// Anonymous accepts callers without credentials as the user system:anonymous, who may do what the authorizer allows.
	Anonymous bool
	// NoTokens rejects bearer tokens. AllowAll allows each caller everything.
	NoTokens, AllowAll bool
	// TokenTTL is how long the review of a token is valid, 2 min if zero; AllowedTTL that of a permission, 5 min if zero, and
	// DeniedTTL that of a denial, 30 s if zero. With a negative one each request is reviewed.
	TokenTTL, AllowedTTL, DeniedTTL time.Duration
}

// NewDelegatedAuth returns an Auth that verifies client certificates with a CA and delegates the rest to the API
// server: TokenReview authenticates tokens, SubjectAccessReview authorizes. Results are cached. Where neither certificates, tokens
// nor anonymous callers are accepted, each request is rejected.
func NewDelegatedAuth(deps AuthDeps, config AuthConfig) (Auth, error) {
	if deps.Client == nil {
		return Auth{}, errors.New("server: AuthDeps.Client is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	retry := &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
	authn := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                &apiserver.AnonymousAuthConfig{Enabled: config.Anonymous},
		TokenAccessReviewTimeout: reviewTimeout,
		WebhookRetryBackoff:      retry,
		CacheTTL:                 cmp.Or(config.TokenTTL, tokenTTL),
	}
	if !config.NoTokens {
		authn.TokenAccessReviewClient = deps.Client.AuthenticationV1()
	}
	if config.ClientCAFile != "" {
		ca := &clientCA{file: config.ClientCAFile, logger: deps.Logger}
		if err := ca.load(); err != nil {
			return Auth{}, err
		}
		authn.ClientCertificateCAContentProvider = ca
	}
	var requests authenticator.Request = authenticator.RequestFunc(rejectAll)
	if config.ClientCAFile != "" || !config.NoTokens || config.Anonymous {
		delegated, _, err := authn.New()
		if err != nil {
			return Auth{}, fmt.Errorf("create node authenticator: %w", err)
		}
		requests = delegated
	}
	if config.AllowAll {
		return Auth{Authenticator: requests, Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()}, nil
	}
	authz, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: deps.Client.AuthorizationV1(),
		AllowCacheTTL:             cmp.Or(config.AllowedTTL, allowTTL),
		DenyCacheTTL:              cmp.Or(config.DeniedTTL, denyTTL),
		WebhookRetryBackoff:       retry,
	}.New()
	if err != nil {
		return Auth{}, fmt.Errorf("create node authorizer: %w", err)
	}
	return Auth{Authenticator: requests, Authorizer: authz}, nil
}

// rejectAll authenticates no request.
func rejectAll(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil }

// authorize passes a request to next if its sender is authenticated and authorized.
func (a Auth) authorize(nodeName string, logger *slog.Logger, next http.Handler) http.Handler {
	if a.Attributes == nil {
		a.Attributes = NodeAttributes{nodeName}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok, err := a.Authenticator.AuthenticateRequest(r)
		if err != nil || !ok {
			if err != nil {
				// Anyone can cause it, as often as the network permits.
				logger.Debug("request not authenticated", "path", r.URL.Path, "from", r.RemoteAddr, "error", err)
			}
			w.Header().Set("Connection", "close") // and the rest of the request is not read
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		markAuthenticated(r.Context())
		attributes := a.Attributes.GetRequestAttributes(r.Context(), info.User, r)
		allowed, err := a.allowed(r.Context(), attributes)
		if err != nil {
			logger.Warn("failed to authorize request", "user", info.User.GetName(), "attributes", describe(attributes), "error", err)
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, %s)", info.User.GetName(), describe(attributes)),
				http.StatusInternalServerError)
			return
		}
		if !allowed {
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, %s)", info.User.GetName(), describe(attributes)), http.StatusForbidden)
			return
		}
		// Handlers forward requests to the runtime, which must not see the caller's credentials.
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	})
}

// describe returns the verb, the resource and the subresources for messages.
func describe(attributes []authorizer.Attributes) string {
	if len(attributes) == 0 {
		return "no attributes"
	}
	subresources := make([]string, 0, len(attributes))
	for _, one := range attributes {
		subresources = append(subresources, one.GetSubresource())
	}
	first := attributes[0]
	return fmt.Sprintf("verb=%s, resource=%s, subresource(s)=%v", first.GetVerb(), first.GetResource(), subresources)
}

// allowed checks the attributes in turn; one that is allowed suffices.
func (a Auth) allowed(ctx context.Context, attributes []authorizer.Attributes) (bool, error) {
	for _, one := range attributes {
		decision, _, err := a.Authorizer.Authorize(ctx, one)
		if err != nil {
			return false, fmt.Errorf("authorize %s %s/%s: %w", one.GetVerb(), one.GetResource(), one.GetSubresource(), err)
		}
		if decision == authorizer.DecisionAllow {
			return true, nil
		}
	}
	return false, nil
}

// attributesOf returns the verb and the subresources of "nodes" that a request is authorized by. Paths that can run
// something or read from a container require the subresource "proxy"; the harmless ones also have one of their own.
func attributesOf(r *http.Request) (verb string, subresources []string) {
	switch r.Method {
	case http.MethodPost:
		verb = "create"
	case http.MethodGet:
		verb = "get"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
	}
	root, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch root {
	case "stats", "metrics", "checkpoint", "statusz":
		return verb, []string{root}
	case "logs":
		return verb, []string{"log"}
	case "flagz":
		return verb, []string{"configz"}
	case "pods", "runningpods":
		return verb, []string{"pods", "proxy"}
	case "livez":
		return verb, []string{"healthz", "proxy"}
	case "healthz", "configz":
		return verb, []string{root, "proxy"}
	case "exec", "attach", "portForward", "run":
		// A WebSocket begins with GET, and runs a command as POST does: to read nodes/proxy must not suffice for it.
		if verb == "get" {
			verb = "create"
		}
	}
	return verb, []string{"proxy"}
}
