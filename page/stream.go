package page

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/wakeup"
)

// update is what a page receives: the new content of blocks, new or changed items, and the order of lists.
type update struct {
	Blocks map[string]string   `json:"blocks,omitempty"`
	Items  map[string]string   `json:"items,omitempty"`
	Order  map[string][]string `json:"order,omitempty"`
	Gone   string              `json:"gone,omitempty"`
}

func (u update) empty() bool { return len(u.Blocks)+len(u.Items)+len(u.Order) == 0 && u.Gone == "" }

// sent has the hashes of what one page has received.
type sent struct {
	seed   maphash.Seed
	hashes map[string]uint64
}

// isNew reports whether the text of that name differs from the last one, and notes it.
func (s *sent) isNew(name, text string) bool {
	hash := maphash.String(s.seed, text)
	if old, ok := s.hashes[name]; ok && old == hash {
		return false
	}
	s.hashes[name] = hash
	return true
}

// diff returns what of the document the page does not have.
func (s *sent) diff(page *document) update {
	u := update{Blocks: map[string]string{}, Items: map[string]string{}, Order: map[string][]string{}}
	shown := make(map[string]bool)
	for _, b := range page.Blocks {
		if !b.List {
			if s.isNew("b "+b.ID, b.HTML) {
				u.Blocks[b.ID] = b.HTML
			}
			continue
		}
		order := make([]string, 0, len(b.Items))
		for _, i := range b.Items {
			order = append(order, i.ID)
			shown["i "+i.ID] = true
			if s.isNew("i "+i.ID, i.content()) {
				u.Items[i.ID] = i.HTML
			}
		}
		if s.isNew("o "+b.ID, strings.Join(order, " ")) {
			u.Order[b.ID] = order
		}
	}
	// The browser removes the other items: one that returns has to be sent again.
	maps.DeleteFunc(s.hashes, func(name string, _ uint64) bool { return strings.HasPrefix(name, "i ") && !shown[name] })
	return u
}

// minPause is the least time between two updates of one page: many changes at once cost one update. Pages that read much
// have slowPause.
const (
	minPause  = 50 * time.Millisecond
	slowPause = 2 * time.Second
)

// stream sends the changes of one page as server-sent events until the browser leaves.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	target, err := url.Parse(r.URL.Query().Get("page"))
	if err != nil {
		http.Error(w, "no such page", http.StatusNotFound)
		return
	}
	v, ok := parseView(target)
	if !ok {
		http.Error(w, "no such page", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead { // its response has no body, and would not end
		return
	}
	h, release, err := s.open()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer release()
	w.Header().Set("X-Accel-Buffering", "no")
	flusher := http.NewResponseController(w)
	if flusher.Flush() != nil {
		return
	}
	send := func(u update) error {
		data, err := json.Marshal(u)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil {
			return err
		}
		return flusher.Flush()
	}
	s.follow(r.Context(), h, v, send)
}

// follow renders the view after each change and sends what is new, until ctx ends or the browser is gone.
func (s *Server) follow(ctx context.Context, h *hub, v view, send func(update) error) {
	changed, stop := h.listen()
	defer stop()
	tail := newLogTail(h, v, changed)
	defer tail.wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait for tail
	have := sent{seed: maphash.MakeSeed(), hashes: make(map[string]uint64)}
	m := &memory{}
	for {
		page, err := v.render(ctx, h, s.deps.Clock.Now(), m)
		u := update{}
		switch {
		case ctx.Err() != nil:
			return
		case isNotFound(err):
			u.Gone, page = "deleted", &document{pause: minPause}
			if !have.isNew("gone", u.Gone) {
				u.Gone = ""
			}
		case err != nil:
			s.deps.Logger.Warn("Failed to update a page", "component", "page", "error", err)
			page = &document{pause: slowPause, again: rowLifetime}
		default:
			delete(have.hashes, "gone")
			tail.update(ctx, page)
			u = have.diff(page)
		}
		if !u.empty() && send(u) != nil {
			return
		}
		var ok bool
		if m.changed, ok = s.wait(ctx, changed.C(), page); !ok {
			return
		}
	}
}

// wait waits until the page is to be rendered again, and reports whether something has changed. It returns false when ctx ends.
func (s *Server) wait(ctx context.Context, changes <-chan struct{}, page *document) (changed, ok bool) {
	if !wakeup.Sleep(ctx, s.deps.Clock, page.pause) {
		return false, false
	}
	var again <-chan time.Time
	if page.again > 0 {
		timer := s.deps.Clock.NewTimer(page.again)
		defer timer.Stop()
		again = timer.C()
	}
	select {
	case <-ctx.Done():
		return false, false
	case <-changes:
		return true, true
	case <-again:
		return false, true
	}
}

// search lists the objects that a text finds.
func (s *Server) search(w http.ResponseWriter, r *http.Request) {
	h, release, err := s.open()
	if err != nil {
		s.fail(w, err)
		return
	}
	defer release()
	text := r.URL.Query().Get("q")
	found := h.find(text)
	if len(found) == 1 {
		http.Redirect(w, r, found[0].Link, http.StatusSeeOther)
		return
	}
	s.write(w, http.StatusOK, "", &document{Title: "Search", Nav: "search", Blocks: []block{{ID: "found", HTML: fragmentHTML("found", struct {
		Text  string
		Found []relative
	}{text, found})}}})
}
