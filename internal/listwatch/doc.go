// Package listwatch lists and watches objects through a typed client, for reflectors and informers.
package listwatch
