// Package pki makes and keeps the certificates and keys of one cluster.
//
// Ensure is idempotent: what is there and still fits is kept, what is missing,
// near its end or no longer fits the flags is made anew. Every file is written
// whole or not at all, a key before its certificate, so a crash leaves at worst
// a key without a certificate, which the next start completes. Only a lost or
// damaged authority is not repaired: making a new one would cut off everything
// that trusts the old one, so Ensure says what to do and leaves it.
package pki
