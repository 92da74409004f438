package timeline

import (
	"context"
	"time"
)

// Span is a stage that has begun. A nil Span does nothing. It is safe for concurrent use.
type Span struct {
	r       *Recorder
	ref     Ref
	name    string
	subject string
	attempt int
}

// Begin records that owner starts a stage of the object. End must be called on the result, once.
func (r *Recorder) Begin(ref Ref, owner, stage, subject string) *Span {
	return r.BeginQueued(ref, owner, stage, subject, time.Time{})
}

// BeginQueued is Begin for a stage that was requested earlier and has waited since then in a queue or for a rate limiter:
// the stage began when it was requested, and the wait is recorded in it. A zero time means now.
func (r *Recorder) BeginQueued(ref Ref, owner, stage, subject string, since time.Time) *Span {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if since.IsZero() || since.After(now) {
		since = now
	}
	attempt := r.add(ref, Stage{Name: stage, Subject: subject, Owner: owner, Start: since, WaitMs: millis(now.Sub(since))})
	return &Span{r: r, ref: ref, name: stage, subject: subject, attempt: attempt}
}

// Begin records that owner starts another stage of the span's object.
func (s *Span) Begin(owner, stage, subject string) *Span {
	if s == nil {
		return nil
	}
	return s.r.Begin(s.ref, owner, stage, subject)
}

// End records the end of the stage; err is nil if it succeeded.
func (s *Span) End(err error) {
	s.update(func(stage *Stage) {
		stage.End = s.r.clock.Now()
		stage.setError(err)
	})
}

// AddWait adds to the time that the stage waited in a queue or for a rate limiter.
func (s *Span) AddWait(d time.Duration) {
	if d > 0 {
		s.update(func(stage *Stage) { stage.WaitMs += millis(d) })
	}
}

// SetCause links the stage to the object that it works for or waits for.
func (s *Span) SetCause(cause Ref) {
	s.update(func(stage *Stage) { stage.Cause = &cause })
}

type spanKey struct{}

// Context returns ctx with the span in it, for Current.
func (s *Span) Context(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, spanKey{}, s)
}

// Current returns the innermost span that ctx carries, nil if there is none: code that does not know for which object it
// works can record what it waits for and what it calls.
func Current(ctx context.Context) *Span {
	span, _ := ctx.Value(spanKey{}).(*Span)
	return span
}

// update changes the span's stage, if the record still has it, and notifies the subscribers.
func (s *Span) update(alter func(*Stage)) {
	if s == nil {
		return
	}
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	element, ok := r.objects[s.ref.UID]
	if !ok {
		return
	}
	record := element.Value.(*Record)
	for i := len(record.Stages) - 1; i >= 0; i-- {
		stage := &record.Stages[i]
		if stage.Name == s.name && stage.Subject == s.subject && stage.Attempt == s.attempt {
			alter(stage)
			r.notify(record.Ref, stage)
			return
		}
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
