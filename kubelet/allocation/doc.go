// Package allocation remembers across starts of the node agent which resources each Pod was granted, and which its
// containers were last told to have.
//
// Both lie in files of upstream's names and form, so that a node can change hands. What is granted has to be known after a
// start: the spec of a Pod may have been changed meanwhile, which is a wish and no grant. What was told is how a start
// finds a change that was under way. A file that cannot be read is discarded, and said: the Pods' statuses then tell what
// was granted, and the runtime what is in force.
package allocation
