// Package pki creates and maintains the certificates and keys of one cluster.
//
// Ensure is idempotent: it keeps what exists and still matches the flags, and
// creates what is missing, expires soon or no longer matches. Every file is
// written atomically, a key before its certificate, so a crash leaves at worst a
// key without a certificate, which the next start completes. A certificate of an authority is made again from its key. If
// that key is lost or damaged, the authority is a new one, and what is left of the old one is kept beside it: copies of
// kubeconfigs and machines that joined no longer work, which the log says.
//
// [PKI.Renew] does the same while the cluster runs, except that authorities keep their keys. All readers of the files load a replaced one
// without a restart: the API server and the kubelet by themselves, clients by what client-go does for files.
package pki
