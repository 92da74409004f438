// Package explain says why a Pod is not running yet, or how it came to run.
//
// The answer is data: a verdict in one sentence, the stages of the object's way, the evidence for the verdict,
// and the next safe command. It is drawn from the API objects and from timeline's records. Where a record is
// missing (another cluster's kubelet, a Pod older than the running berth) the answer is made from what the API
// tells, and says what it could not see.
package explain
