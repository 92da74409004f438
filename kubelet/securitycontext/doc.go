// Package securitycontext turns the security contexts of a Pod and a container into what the runtime is told.
//
// The functions are pure, but for the masked paths, which depend on the CPUs of this machine and are looked up once.
package securitycontext
