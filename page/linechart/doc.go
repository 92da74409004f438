// Package linechart draws a measure over time as SVG, with a sentence for readers who do not see it.
package linechart
