package up

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/up/supervisor"
)

// slowStart is when a start reports what it waits for, and again after twice the time. A start takes some seconds.
const slowStart = 20 * time.Second

// shownError is how many bytes are shown of an error in a log.
const shownError = 400

// A startingPart is a part of the cluster that a start waits for.
type startingPart struct {
	name  string
	ready *readiness
	log   string
	// begun is where the part of this start begins in the log.
	begun int64
}

// reportSlowStart reports which of the parts are not ready yet, and the last error in their logs, until end is called.
func (c *Cluster) reportSlowStart(ctx context.Context, parts ...startingPart) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	for i := range parts {
		if info, err := os.Stat(parts[i].log); err == nil {
			parts[i].begun = info.Size()
		}
	}
	done := make(chan struct{})
	began := c.clock.Now()
	go func() {
		defer close(done)
		contain.Guard("up.reportSlowStart", "", func() {
			for pause := slowStart; wakeup.Sleep(ctx, c.clock, pause); pause *= 2 {
				for _, part := range parts {
					if !part.ready.isDone() {
						c.logAndPrint(fmt.Sprintf("%s is not ready after %v%s", part.name, c.clock.Since(began).Round(time.Second), part.lastError()))
					}
				}
			}
		})()
	}()
	return func() {
		cancel()
		<-done
	}
}

// lastError returns the last error that the part has logged in this start, as the end of a sentence.
func (p startingPart) lastError() string {
	last := ""
	if file, err := os.Open(p.log); err == nil {
		defer file.Close()
		data, _ := supervisor.Tail(file, p.begun) // what cannot be read says nothing
		last = lastError(data)
	}
	if last == "" {
		return fmt.Sprintf(" (see %s)", p.log)
	}
	if len(last) > shownError {
		last = strings.ToValidUTF8(last[:shownError], "") + " …"
	}
	return fmt.Sprintf("; the last error in %s: %s", p.log, last)
}

// lastError returns the text of the last line that is an error, in the format of log/slog, logrus or zap; empty for none.
func lastError(log []byte) string {
	last := ""
	for line := range bytes.Lines(log) {
		if !utf8.Valid(line) {
			continue
		}
		text := strings.TrimSpace(string(line))
		for _, level := range []string{" level=ERROR ", " level=error ", " level=fatal ", `"level":"error",`, `"level":"fatal",`} {
			if _, rest, found := strings.Cut(text, level); found {
				last = strings.TrimPrefix(rest, "msg=")
			}
		}
	}
	return last
}
