// Package pullrecords remembers with which credentials each image was pulled, so that an image that lies on the node is used
// by those Pods alone that could pull it: without that, one tenant's private image is anybody's who comes to the node
// after it. The contract is KEP-2535 (KubeletEnsureSecretPulledImages).
//
// It keeps two kinds of small files, in upstream's format and under upstream's names, so that a node may be handed over
// between the two: an intent in pulling/ from before a pull until its end is known, and a record in pulled/ as long as
// the image is there. What is read at the first question is kept in memory; a question about an image that is present
// costs two hashes and no file.
//
// It fails safe: of an image whose record cannot be read only a pull tells who may use it.
package pullrecords
