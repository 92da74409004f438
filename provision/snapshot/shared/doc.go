// Package shared has what the controllers of single snapshots and those of group snapshots do alike, whatever the kinds of
// their objects are: patch an object, report an error in its status, bind a request to its content, wait for the claims and
// classes that a request lacks, and mark a content while the result of a driver's call is unknown.
package shared
