// Package pullrecords records the credentials that each image was pulled with, so that an image on the node can be used
// only by Pods that could pull it. Without it, any Pod on the node could use another tenant's private image. The
// contract is KEP-2535 (KubeletEnsureSecretPulledImages).
//
// It stores two kinds of small files, in upstream's format and under upstream's names, so that either kubelet can take
// over a node: an intent in pulling/, from before a pull until its outcome is known, and a record in pulled/ while the
// image exists. The files are read at the first check and then kept in memory; a check of a present image costs two
// hashes and no file access.
//
// It fails safe: an image whose record cannot be read must be pulled again.
package pullrecords
