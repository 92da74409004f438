// Package projected is the volume plugins whose files are made from objects of the API: configMap, secret,
// downwardAPI, and projected, which joins several of those with service-account tokens, trust bundles and certificates.
//
// All four collect the files of their sources and write them with package atomicwriter. All follow changes of their
// objects (volume.Refresher). All but configMap keep their files in memory, because the files may be secret.
package projected
