// Package securitycontext converts the security contexts of a Pod and its containers to those of the CRI.
//
// Its functions are pure, except that the masked paths depend on this machine's CPUs; they are determined once.
package securitycontext
