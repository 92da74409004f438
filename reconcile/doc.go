// Package reconcile is the contract between a piece of business logic and the machinery that calls it: given the
// name of an object, bring its actual state to the desired one, and return when to reconcile it again.
//
// Reconciliation is level-based. A [Request] names an object and does not say what happened to it, so a
// [Reconciler] reads the current state each time, and events may be merged, repeated or lost in between. Package
// controller runs Reconcilers; this package only defines the terms, and imports no machinery.
//
// What the caller does with the result, in this order:
//
//  1. A [TerminalError] is counted and logged, and the request is dropped until a new event brings it back.
//  2. Any other error puts the request back with a delay that grows with each failure in a row. The [Result] is
//     ignored.
//  3. RequeueAfter > 0 forgets the failures and calls again after exactly that time, or earlier if an event comes.
//  4. Requeue puts the request back with the same growing delay as an error.
//  5. The zero Result ends the work and forgets the failures.
package reconcile
