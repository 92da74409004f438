// Package pki creates and maintains the certificates and keys of one cluster.
//
// Ensure is idempotent: it keeps what exists and still matches the flags, and
// creates what is missing, expires soon or no longer matches. Every file is
// written atomically, a key before its certificate, so a crash leaves at worst a
// key without a certificate, which the next start completes. Only a lost or damaged
// authority is not repaired, because nothing that trusts the old one would trust a
// new one: Ensure returns an error that says what to do.
package pki
