package page

import (
	"bytes"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/timeline"
)

// script is what make page-script makes of the directory script.
//
//go:embed static/app.js
var script string

// Records reads the records of a running berth.
type Records interface {
	explain.Records
	// Latest returns the records of a kind that changed last, the newest first.
	Latest(ctx context.Context, kind string, limit int) ([]timeline.Record, error)
	// Stages calls each for every change from now on, and ready once it receives every change, until ctx or the stream ends. A
	// change without a UID says that some were lost.
	Stages(ctx context.Context, uid types.UID, ready func(), each func(timeline.Change)) error
}

// Deps are the dependencies of a Server.
type Deps struct {
	// Connect returns the client that reads the API with its user's rights, as NewClient makes it. It is called when a page is
	// opened after a while without one.
	Connect func() (kubernetes.Interface, error)
	// Records may be nil: then stages have the times of API objects.
	Records Records
	// Network may be nil: then explanations do not see sockets, kube-proxy and DNS.
	Network explain.Network
	Logger  *slog.Logger
	Clock   clock.WithTicker
}

// Config is the configuration of a Server.
type Config struct {
	// Address is that of the listener of Serve.
	Address net.Addr
	// Command completes a command of `berth` for this cluster; it may be nil.
	Command func(command string) string
	// Cluster names the cluster in the title.
	Cluster string
	// Namespace is the only one whose objects are shown, beside what is in none; empty for all.
	Namespace string
}

// Server serves the page. It watches the cluster only while a page is open.
type Server struct {
	deps   Deps
	config Config
	access *access

	mu     sync.Mutex // guards all below
	hub    *hub       // nil while no page is open
	users  int
	linger context.CancelFunc // keeps the hub, which is about to be closed
	ctx    context.Context    // ends with Serve
}

// New returns a Server that serves nothing before Serve.
func New(deps Deps, config Config) (*Server, error) {
	switch {
	case deps.Connect == nil:
		return nil, errors.New("page: Deps.Connect is required")
	case deps.Logger == nil:
		return nil, errors.New("page: Deps.Logger is required")
	case deps.Clock == nil:
		return nil, errors.New("page: Deps.Clock is required")
	case config.Address == nil:
		return nil, errors.New("page: Config.Address is required")
	}
	return &Server{
		deps: deps, config: config, access: newAccess(deps.Clock, config.Address), linger: func() {}, ctx: context.Background(),
	}, nil
}

// URL returns a new link, which one browser may use once, within 15 minutes.
func (s *Server) URL() string {
	return "http://" + s.config.Address.String() + "/?token=" + s.access.newToken()
}

// headerTimeout bounds how long a browser may take to send the headers of a request.
const headerTimeout = 5 * time.Second

// Serve serves the page on the listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	s.ctx = ctx
	server := &http.Server{
		Handler: contain.Handler("page", s.Handler()), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // pages connect again
	defer stop()
	defer s.closeHub()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Handler returns the handler of all pages, behind the check of access.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/style.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = w.Write([]byte(style())) // the browser is gone
	})
	mux.HandleFunc("GET /static/app.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		_, _ = w.Write([]byte(script)) // the browser is gone
	})
	mux.HandleFunc("GET /events", s.stream)
	mux.HandleFunc("GET /search", s.search)
	mux.HandleFunc("GET /", s.show)
	return s.access.guard(mux)
}

// lingerTime is how long the watches stay after the last page was closed, because the way from one page to the next closes one.
const lingerTime = 20 * time.Second

// open returns the hub, and a function that releases it.
func (s *Server) open() (*hub, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.linger()
	if s.hub == nil {
		h, err := newHub(s.ctx, s.deps, s.config)
		if err != nil {
			return nil, nil, err
		}
		s.hub = h
	}
	s.users++
	return s.hub, sync.OnceFunc(s.release), nil
}

// release closes the hub a while after the last page.
func (s *Server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	if s.users > 0 {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.linger = cancel
	go contain.Guard("page.linger", "", func() {
		if wakeup.Sleep(ctx, s.deps.Clock, lingerTime) {
			s.closeHub()
		}
	})()
}

// closeHub stops the watches unless a page is open.
func (s *Server) closeHub() {
	s.mu.Lock()
	h := s.hub
	if s.users > 0 && s.ctx.Err() == nil {
		h = nil
	} else {
		s.hub = nil
	}
	s.mu.Unlock()
	if h != nil {
		h.close()
	}
}

// show renders the page of a path in whole.
func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	v, ok := parseView(r.URL)
	if !ok {
		s.notFound(w, "There is no such page.")
		return
	}
	h, release, err := s.open()
	if err != nil {
		s.fail(w, err)
		return
	}
	defer release()
	page, err := v.render(r.Context(), h, s.deps.Clock.Now(), nil)
	switch {
	case isNotFound(err):
		s.notFound(w, err.Error())
	case err != nil:
		s.fail(w, err)
	default:
		s.write(w, http.StatusOK, r.URL.RequestURI(), page)
	}
}

// write writes a page with the frame that all have.
func (s *Server) write(w http.ResponseWriter, code int, stream string, page *document) {
	render(w, code, "page", struct {
		*document
		Cluster, Stream string
	}{page, s.config.Cluster, stream})
}

func (s *Server) notFound(w http.ResponseWriter, why string) {
	s.write(w, http.StatusNotFound, "", &document{Title: "Not found", Blocks: []block{{ID: "missing", HTML: fragmentHTML("missing", why)}}})
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	s.deps.Logger.Warn("Failed to render a page", "component", "page", "error", err)
	s.write(w, http.StatusBadGateway, "", &document{Title: "The cluster cannot be read", Blocks: []block{{ID: "missing", HTML: fragmentHTML("broken", err.Error())}}})
}

// render executes a template as the response.
func render(w http.ResponseWriter, code int, name string, data any) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // the browser is gone
}

// fragmentHTML executes a template of a part of a page.
func fragmentHTML(name string, data any) string {
	var b strings.Builder
	if err := templates.ExecuteTemplate(&b, name, data); err != nil {
		return "" // its data has every field that the template names; a test renders each
	}
	return b.String()
}
