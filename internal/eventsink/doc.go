// Package eventsink writes Events to the API server after the writes that matter more.
//
// A Sink is a record.EventSink for one EventBroadcaster, which correlates and counts events before it passes them on.
// The Sink queues each event and returns at once; Start writes the queues in the background, in the order of recording:
//
//   - Warnings have a queue of their own and never wait for other events.
//   - Other events yield: Deps.Yield holds each of them back while more urgent writes are under way.
//   - Late events, those of Deps.Late, have a queue of their own as well: they may wait for long and delay no other.
//   - With Config.Debounce, the first event after a pause waits for that long, and those that follow it are written with it.
//     An event that is written while its Pod starts takes CPU from that start, and its time is in whole seconds anyway.
//
// An event that does not reach the API server is written again after a pause; one that the API server rejects is dropped.
// When the context of Start ends, nothing waits any more, and the events that are left are written within DrainTimeout.
package eventsink
