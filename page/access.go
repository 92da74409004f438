package page

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// tokenLifetime is how long a link works that has not been used; sessionLifetime how long a browser may read after that.
const (
	tokenLifetime   = 15 * time.Minute
	sessionLifetime = 12 * time.Hour
)

// cookiePrefix begins the name of the cookie. The name has the port, because browsers send a cookie to all ports of a host.
const cookiePrefix = "berth-page-"

// access decides who may read: a browser that has used a link, from the page itself. It is safe for concurrent use.
type access struct {
	clock  clock.PassiveClock
	hosts  []string // the values of Host under which the page is reached
	cookie string

	mu       sync.Mutex // guards the maps, which have hashes and the ends of their lifetimes
	tokens   map[[32]byte]time.Time
	sessions map[[32]byte]time.Time
}

// newAccess returns the access to a page on the address.
func newAccess(clock clock.PassiveClock, address net.Addr) *access {
	_, port, _ := net.SplitHostPort(address.String()) // the address of a listener is valid
	return &access{
		clock: clock, hosts: []string{address.String(), net.JoinHostPort("localhost", port)}, cookie: cookiePrefix + port,
		tokens: make(map[[32]byte]time.Time), sessions: make(map[[32]byte]time.Time),
	}
}

// newToken returns a token that one browser may use once.
func (a *access) newToken() string { return a.add(a.tokens, tokenLifetime) }

// add adds a new secret and removes those whose time is over.
func (a *access) add(to map[[32]byte]time.Time, lifetime time.Duration) string {
	secret := rand.Text()
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	for hash, end := range to {
		if !now.Before(end) {
			delete(to, hash)
		}
	}
	to[sha256.Sum256([]byte(secret))] = now.Add(lifetime)
	return secret
}

// left returns for how long the secret is valid still; it is not positive if the secret is unknown or too old. once removes it.
func (a *access) left(in map[[32]byte]time.Time, secret string, once bool) time.Duration {
	hash := sha256.Sum256([]byte(secret))
	a.mu.Lock()
	defer a.mu.Unlock()
	end, ok := in[hash]
	if once {
		delete(in, hash)
	}
	if !ok {
		return 0
	}
	return end.Sub(a.clock.Now())
}

// policy is the content security policy of every page: everything comes from the page itself, and nothing is inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// guard lets requests through that only read, name the page's own host, come from the page itself and have a session.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		if !slices.Contains(a.hosts, r.Host) { // a name that leads here, of another site: DNS rebinding
			refuse(w, http.StatusMisdirectedRequest, "This page is not reached by that name.", "Open the link that berth page has printed.")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			header.Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "This page is read-only.", "")
			return
		}
		token := r.URL.Query().Get("token")
		if !a.sameOrigin(r, token != "" && r.URL.Path == "/") {
			refuse(w, http.StatusForbidden, "Another page has sent this request.", "Open the link that berth page has printed.")
			return
		}
		if token != "" && r.URL.Path == "/" {
			if r.Method == http.MethodHead { // what checks links, as a chat does, must not use this one up
				return
			}
			a.enter(w, r, token)
			return
		}
		cookie, err := r.Cookie(a.cookie)
		var left time.Duration
		if err == nil {
			left = a.left(a.sessions, cookie.Value, false)
		}
		if left <= 0 {
			refuse(w, http.StatusUnauthorized, "This browser has no access, or its access has expired.", "Run berth page again and open the link that it prints.")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), left) // updates of an open page end with the session
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// sameOrigin reports whether the request comes from the page itself or from the address bar. A link may be anywhere.
func (a *access) sameOrigin(r *http.Request, isLink bool) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		parsed, err := url.Parse(origin)
		return err == nil && parsed.Scheme == "http" && slices.Contains(a.hosts, parsed.Host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return true
	}
	return isLink && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// enter makes a session of a token. The response is a page that leads on, and no redirect: after a link on another site a
// browser would not send the cookie with a redirected request.
func (a *access) enter(w http.ResponseWriter, r *http.Request, token string) {
	if a.left(a.tokens, token, true) <= 0 {
		refuse(w, http.StatusUnauthorized, "This link has been used, or it is too old.", "Run berth page again and open the link that it prints.")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: a.cookie, Value: a.add(a.sessions, sessionLifetime), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		MaxAge: int(sessionLifetime / time.Second),
	})
	target := "/"
	if to := r.URL.Query().Get("to"); len(to) > 1 && to[0] == '/' && to[1] != '/' && to[1] != '\\' {
		target = to
	}
	render(w, http.StatusOK, "enter", target)
}

// refuse responds with a page that says why and what to do.
func refuse(w http.ResponseWriter, code int, why, what string) {
	render(w, code, "refused", struct{ Why, What string }{why, what})
}
