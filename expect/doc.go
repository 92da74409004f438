// Package expect remembers what a controller has just created and deleted, until its informer cache shows it.
//
// A controller decides on a cache that lags behind its own writes. Deciding again before the cache has caught up creates
// the same objects twice, or deletes too many. An [ExpectationsStore] closes that gap without waiting: after each Create
// the controller records the new UID, before each Delete the UID of the object, and the number to decide by is
//
//	surplus = existing + expected creations − desired − expected deletions
//
// where SyncExpectations, called with what the cache holds, first drops every expectation that the cache has met. No
// decision has to wait.
//
// Where more than one behaviour is possible:
//   - What a getter returns is a snapshot. It never changes afterwards, and several readers may share one, so it
//     must not be modified.
//   - A deletion wins over a creation of the same UID, in whichever order the two are recorded.
//   - A created UID that first shows up already terminating clears its creation.
//   - SyncExpectations and ObserveDeletions of an unknown key change nothing and make no entry.
//   - A key whose expectations are all met stays known until the store's table is full, then it is dropped; so keys of
//     deleted owners do not accumulate even without DeleteExpectations: at most some 12,000 are kept.
//
// A creation may never show up, because the object was gone again before the cache could see it. Such an
// expectation ends by ObserveDeletions from a delete event, by [ExpectationsStore.SyncExpectationsAt] once the cache
// has passed the creation's resource version, or by the age bound of [NewExpectationsStoreWithOptions].
package expect
