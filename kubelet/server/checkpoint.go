package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// checkpoint writes the state of a running container to an archive on the node and responds with its path. The query's
// timeout is in seconds. A runtime that does not support it yields status 404, one that fails 500.
func (s *Server) checkpoint(w http.ResponseWriter, r *http.Request) {
	pod, container, ok := s.podAndContainer(w, r)
	if !ok {
		return
	}
	var timeout time.Duration
	if text := r.URL.Query().Get("timeout"); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 32)
		if err != nil || seconds < 0 {
			http.Error(w, fmt.Sprintf("query parameter \"timeout\": %q is not a number of seconds", text), http.StatusBadRequest)
			return
		}
		timeout = time.Duration(seconds) * time.Second
	}
	path, err := s.deps.Host.Checkpoint(r.Context(), pod, container, timeout)
	switch {
	case errors.Is(err, ErrNotFound) || status.Code(err) == codes.Unimplemented:
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		writeJSON(w, map[string][]string{"items": {path}})
	}
}
