package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/util/flushwriter"
)

const (
	// journalTimeout bounds one read of the journal, as upstream does.
	journalTimeout = 30 * time.Second
	// maxJournalLines and maxServices bound what one request may ask for.
	maxJournalLines, maxServices = 100_000, 4
	// journalTime is the time format of journalctl, in the time zone of --utc.
	journalTime = "2006-01-02 15:04:05 UTC"
)

// serviceName matches the service names that are passed to journalctl.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9@_][a-zA-Z0-9@_:.\-]*$`)

// logQuery is a query for the logs of services of the machine, or for one file.
type logQuery struct {
	services, files []string
	since, until    *time.Time
	lines, boot     *int
	pattern         string
}

// readLogQuery parses a request's query; it returns nil if there is none.
func readLogQuery(query url.Values) (*logQuery, error) {
	q := &logQuery{pattern: query.Get("pattern")}
	var errs []error
	for _, item := range query["query"] {
		switch {
		case strings.ContainsAny(item, `/\`):
			q.files = append(q.files, item)
		case strings.TrimSpace(item) != "":
			q.services = append(q.services, item)
		}
	}
	if query.Has("query") && len(q.files)+len(q.services) == 0 {
		errs = append(errs, errors.New(`query: want the name of a service or of a file`))
	}
	moment := func(name string, into **time.Time) {
		if value := query.Get(name); value != "" {
			index, err := time.Parse(time.RFC3339, value)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %q: want a time like %s", name, value, time.RFC3339))
			}
			*into = &index
		}
	}
	number := func(name string, into **int) {
		if value := query.Get(name); value != "" {
			n, err := strconv.Atoi(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %q: want a number", name, value))
			}
			*into = &n
		}
	}
	moment("sinceTime", &q.since)
	moment("untilTime", &q.until)
	number("tailLines", &q.lines)
	number("boot", &q.boot)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(q.services)+len(q.files) == 0 && !q.hasOptions() {
		return nil, nil
	}
	return q, nil
}

// hasOptions reports whether the query has options.
func (q *logQuery) hasOptions() bool {
	return q.since != nil || q.until != nil || q.lines != nil || q.boot != nil || q.pattern != ""
}

// validate returns an error for an invalid query.
func (q *logQuery) validate() error {
	switch {
	case len(q.services)+len(q.files) == 0:
		return errors.New("query: want the name of a service or of a file besides the options")
	case len(q.files) > 1 || len(q.files) == 1 && len(q.services) > 0:
		return errors.New("query: want one file, or services")
	case len(q.files) == 1 && q.hasOptions():
		return errors.New("query: options are for services, not for a file")
	case len(q.services) > maxServices:
		return fmt.Errorf("query: %d services exceed the maximum of %d", len(q.services), maxServices)
	case q.since != nil && q.until != nil && q.since.After(*q.until):
		return errors.New("untilTime: want it after sinceTime")
	case q.boot != nil && *q.boot > 0:
		return fmt.Errorf("boot %d: want 0 for this boot, or less for earlier ones", *q.boot)
	case q.lines != nil && (*q.lines < 0 || *q.lines > maxJournalLines):
		return fmt.Errorf("tailLines %d: want 0 to %d", *q.lines, maxJournalLines)
	}
	for _, service := range q.services {
		if !serviceName.MatchString(service) {
			return fmt.Errorf("query: %q is not a service name", service)
		}
	}
	if _, err := syntax.Parse(q.pattern, syntax.Perl); err != nil {
		return fmt.Errorf("pattern: %w", err)
	}
	return nil
}

// journalctlArgs returns the arguments of journalctl. None of them can be mistaken for another option.
func (q *logQuery) journalctlArgs(services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if q.since != nil {
		args = append(args, "--since="+q.since.UTC().Format(journalTime))
	}
	if q.until != nil {
		args = append(args, "--until="+q.until.UTC().Format(journalTime))
	}
	if q.lines != nil {
		args = append(args, "--lines="+strconv.Itoa(*q.lines))
	}
	for _, service := range services {
		args = append(args, "--unit="+service)
	}
	if q.pattern != "" {
		args = append(args, "--grep="+q.pattern)
	}
	if q.boot != nil {
		args = append(args, "--boot="+strconv.Itoa(*q.boot))
	}
	return args
}

// matchesNothing reports whether journalctl's error is that no entry has the pattern, which its output says.
func (q *logQuery) matchesNothing(err error) bool {
	var exit *exec.ExitError
	return q.pattern != "" && errors.As(err, &exit) && exit.ExitCode() == 1
}

// logHandler serves the machine's logs at /logs/.
type logHandler struct {
	dir        string // directory of the files
	query      bool   // whether the journal may be queried
	journalctl string // path of the program
}

// ServeHTTP serves the files below the directory, and the journal of services. The directory is opened for each request,
// since it may be created later; no symbolic link is followed out of it.
func (l *logHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		http.Error(w, "the node's log directory cannot be opened", http.StatusNotFound)
		return
	}
	defer root.Close()
	files := http.StripPrefix("/logs/", http.FileServerFS(root.FS()))
	if !l.query {
		files.ServeHTTP(w, r)
		return
	}
	query, err := readLogQuery(r.URL.Query())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case query == nil:
		files.ServeHTTP(w, r)
		return
	case r.URL.Path != "/logs/":
		http.Error(w, "a query has no path", http.StatusNotAcceptable)
		return
	}
	if err := query.validate(); err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return
	}
	if len(query.services) > 0 {
		l.writeJournal(w, r, query)
		return
	}
	r = r.Clone(r.Context())
	r.URL.Path = "/logs/" + strings.TrimPrefix(query.files[0], "/")
	if _, err := root.Stat(strings.TrimPrefix(query.files[0], "/")); err != nil {
		http.Error(w, fmt.Sprintf("query: %q is not a file in the node's log directory", query.files[0]), http.StatusNotAcceptable)
		return
	}
	files.ServeHTTP(w, r)
}

// writeJournal responds with the journal's entries of the services, or with their files in the log directory where the
// journal has none. Errors are written into the body: the status has been sent.
func (l *logHandler) writeJournal(w http.ResponseWriter, r *http.Request, q *logQuery) {
	ctx, cancel := context.WithTimeout(r.Context(), journalTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := flushwriter.Wrap(w)
	native, files := q.services, []string(nil)
	if units, err := exec.CommandContext(ctx, l.journalctl, "--field=_SYSTEMD_UNIT").Output(); err == nil {
		known := strings.Fields(string(units))
		native = slices.DeleteFunc(slices.Clone(q.services), func(service string) bool {
			return !slices.Contains(known, service) && !slices.Contains(known, service+".service")
		})
	} else {
		native = nil
	}
	for _, service := range q.services {
		if !slices.Contains(native, service) {
			files = append(files, service)
		}
	}
	if len(native) > 0 {
		cmd := exec.CommandContext(ctx, l.journalctl, q.journalctlArgs(native)...)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil && r.Context().Err() == nil && !q.matchesNothing(err) {
			fmt.Fprintf(out, "\nerror: journalctl failed: %v\n", err)
		}
	}
	for _, service := range files {
		if q.hasOptions() {
			fmt.Fprintf(out, "\nerror: the journal has no entries of %s, and options do not apply to files\n", service)
			continue
		}
		l.writeServiceLog(out, service)
	}
}

// writeServiceLog writes the log file of a service: NAME, NAME.log or NAME/NAME.log in the log directory.
func (l *logHandler) writeServiceLog(out io.Writer, service string) {
	root, err := os.OpenRoot(l.dir)
	if err != nil {
		fmt.Fprintf(out, "\nerror: the node's log directory cannot be opened\n")
		return
	}
	defer root.Close()
	for _, name := range []string{service, service + ".log", filepath.Join(service, service+".log")} {
		file, err := root.Open(name)
		if err != nil {
			continue
		}
		info, err := file.Stat()
		if err == nil && info.Mode().IsRegular() {
			_, err = io.Copy(out, file)
			_ = file.Close() // opened for reading only
			if err != nil {
				fmt.Fprintf(out, "\nerror: reading %s failed\n", name)
			}
			return
		}
		_ = file.Close() // opened for reading only
	}
	fmt.Fprintf(out, "\nerror: neither the journal nor the log directory has logs of %s\n", service)
}
