// Package gctuner has Go's garbage collector work less often while the process allocates much, and as usual otherwise.
//
// A control plane at rest should be small, and one that creates hundreds of objects at once should not spend a sixth of
// its time on looking for garbage. One value of GOGC gives either the one or the other; what changes it here is the rate
// at which memory is allocated. That is looked at after each collection, and by a timer while it is high, never at rest.
package gctuner
