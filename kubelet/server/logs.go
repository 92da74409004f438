package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/flushwriter"
)

// getContainerLogs serves /containerLogs: a container's log as it is written.
func (s *Server) getContainerLogs(w http.ResponseWriter, r *http.Request) {
	opts, err := logOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := validateLogOptions(opts); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	pod, container, ok := s.podAndContainer(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := &responseWriter{w: flushwriter.Wrap(w)}
	stdout, stderr := io.Writer(out), io.Writer(out)
	switch streamOf(opts) {
	case corev1.LogStreamStdout:
		stderr = nil
	case corev1.LogStreamStderr:
		stdout = nil
	}
	err = s.deps.Host.ContainerLogs(r.Context(), pod, container, opts, stdout, stderr)
	switch {
	case err == nil || r.Context().Err() != nil:
	case out.begun: // the status has been sent
		s.logger.Info("failed to send the rest of a container log", "pod", pod.Namespace+"/"+pod.Name, "container", container, "error", err)
	case errors.Is(err, ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// responseWriter notes that a response has begun, which is by an empty write, too.
type responseWriter struct {
	w     io.Writer
	begun bool
}

func (r *responseWriter) Write(p []byte) (int, error) {
	r.begun = true
	return r.w.Write(p)
}

func streamOf(opts *corev1.PodLogOptions) string {
	if opts.Stream == nil {
		return corev1.LogStreamAll
	}
	return *opts.Stream
}

// logOptions parses the query that the API server sends. "tail" is the old name of tailLines.
func logOptions(query url.Values) (*corev1.PodLogOptions, error) {
	opts := &corev1.PodLogOptions{Container: query.Get("container")}
	var errs []error
	flag := func(name string, into *bool) {
		if value := query.Get(name); value != "" {
			parsed, err := strconv.ParseBool(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("query parameter %q: %q is neither true nor false", name, value))
			}
			*into = parsed
		} else if query.Has(name) {
			*into = true
		}
	}
	number := func(name string, into **int64) {
		if value := query.Get(name); value != "" {
			parsed, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				errs = append(errs, fmt.Errorf("query parameter %q: %q is not a number", name, value))
			}
			*into = &parsed
		}
	}
	flag("follow", &opts.Follow)
	flag("previous", &opts.Previous)
	flag("timestamps", &opts.Timestamps)
	number("sinceSeconds", &opts.SinceSeconds)
	number("limitBytes", &opts.LimitBytes)
	number("tailLines", &opts.TailLines)
	if tail := query.Get("tail"); tail == "all" {
		opts.TailLines = nil
	} else {
		number("tail", &opts.TailLines)
	}
	if value := query.Get("sinceTime"); value != "" {
		parsed, err := time.Parse(time.RFC3339, value)
		if err != nil {
			errs = append(errs, fmt.Errorf("query parameter \"sinceTime\": %q is not a time like %s", value, time.RFC3339))
		}
		opts.SinceTime = &metav1.Time{Time: parsed}
	}
	if value := query.Get("stream"); value != "" {
		opts.Stream = &value
	}
	return opts, errors.Join(errs...)
}

// validateLogOptions rejects what the API server would reject.
func validateLogOptions(opts *corev1.PodLogOptions) error {
	var errs []error
	if opts.TailLines != nil && *opts.TailLines < 0 {
		errs = append(errs, fmt.Errorf("tailLines: %d must not be negative", *opts.TailLines))
	}
	if opts.LimitBytes != nil && *opts.LimitBytes < 1 {
		errs = append(errs, fmt.Errorf("limitBytes: %d must be greater than 0", *opts.LimitBytes))
	}
	if opts.SinceSeconds != nil && opts.SinceTime != nil {
		errs = append(errs, errors.New("at most one of sinceTime or sinceSeconds may be specified"))
	} else if opts.SinceSeconds != nil && *opts.SinceSeconds < 1 {
		errs = append(errs, fmt.Errorf("sinceSeconds: %d must be greater than 0", *opts.SinceSeconds))
	}
	switch stream := streamOf(opts); stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if opts.TailLines != nil {
			errs = append(errs, fmt.Errorf("tailLines and stream %q are mutually exclusive", stream))
		}
	default:
		errs = append(errs, fmt.Errorf("stream: %q is none of All, Stdout, Stderr", stream))
	}
	return errors.Join(errs...)
}
