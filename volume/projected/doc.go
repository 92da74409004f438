// Package projected is the volume plugins whose files are made from objects of the API: configMap, secret,
// downwardAPI, and projected, which joins several of those with service-account tokens.
//
// They differ in what they name; all four turn it into a set of files in one place and have package atomicwriter
// write it. All follow their objects (volume.Refresher). All but configMap are in memory, for what they hold may be
// secret.
package projected
