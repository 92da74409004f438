// Package podrun runs one Pod in the foreground: it starts it on a node agent that stands alone, shows what its
// containers write, and tells how it ended.
package podrun
