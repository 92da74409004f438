// Package stubimages builds the images that upstream's suite uses, under exactly those names: upstream's own test
// programs, built from its module, on Debian's busybox and tools.
package stubimages
