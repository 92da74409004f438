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
	// DeniedTTL that of a denial, 30 s if zero.
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok, err := a.Authenticator.AuthenticateRequest(r)
		if err != nil || !ok {
			if err != nil {
				logger.Info("request not authenticated", "path", r.URL.Path, "from", r.RemoteAddr, "error", err)
			}
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb, subresources := attributesOf(r)
		allowed, err := a.allowed(r.Context(), info.User, nodeName, verb, subresources)
		if err != nil {
			logger.Warn("failed to authorize request", "user", info.User.GetName(), "verb", verb, "subresources", subresources,
				"error", err)
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
				info.User.GetName(), verb, subresources), http.StatusInternalServerError)
			return
		}
		if !allowed {
			http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)",
				info.User.GetName(), verb, subresources), http.StatusForbidden)
			return
		}
		// Handlers forward requests to the runtime, which must not see the caller's credentials.
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	})
}

// allowed checks each subresource in turn; one that is allowed suffices.
func (a Auth) allowed(ctx context.Context, u user.Info, nodeName, verb string, subresources []string) (bool, error) {
	for _, subresource := range subresources {
		decision, _, err := a.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User:            u,
			Verb:            verb,
			APIGroup:        "",
			APIVersion:      "v1",
			Resource:        "nodes",
			Subresource:     subresource,
			Name:            nodeName,
			ResourceRequest: true,
		})
		if err != nil {
			return false, fmt.Errorf("authorize %s nodes/%s: %w", verb, subresource, err)
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
	}
	return verb, []string{"proxy"}
}
