// Package resolvconf finds the name servers that a machine uses, and follows changes of the files that name them.
package resolvconf
