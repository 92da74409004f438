// Package waterfall draws the stages of an object as an SVG picture to scale, with a text alternative: a row for each stage,
// its colour by who works on it, hatched where it waits.
package waterfall
