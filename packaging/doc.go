// Package packaging makes the files that people install Berth from: Debian packages, RPM packages and tar archives.
//
// The same programs at the same version give the same bytes, whenever and wherever that is done.
package packaging
