// Package worker has functions that are used and some that are not.
package worker

// Worker runs.
type Worker struct {
	onEvent func()
	queue   Queue[int]
}

var initial = prepare()

func prepare() int { return 1 }

// New is called.
func New(onEvent func()) *Worker { return &Worker{onEvent: onEvent} }

// Run is called through an interface of the module.
func (w *Worker) Run() {
	w.onEvent()
	handlers := []func(){w.handle}
	handlers[0]()
	w.queue.Add(initial)
}

func (w *Worker) handle() {}

// String is called by package fmt.
func (w *Worker) String() string { return "worker" }

// Unwired is never called, though the worker is an interface value.
func (w *Worker) Unwired() { w.helper() }

func (w *Worker) helper() {}

// Queue is generic.
type Queue[T any] struct{ items []T }

// Add is called.
func (q *Queue[T]) Add(item T) { q.items = append(q.items, item) }

// Clear is not.
func (q *Queue[T]) Clear() { q.items = nil }

// Map is called.
func Map[A, B any](list []A, f func(A) B) []B {
	var out []B
	for _, a := range list {
		out = append(out, f(a))
	}
	return out
}
