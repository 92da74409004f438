// Package quantity parses quantities from texts that no API server has validated.
package quantity

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds of a text. No quantity needs more: the largest is below 1e19, and the smallest 1e-9.
const (
	maxLength         = 64
	maxExponentDigits = 3
)

// Parse is resource.ParseQuantity, which computes the power of ten of any exponent: one of 1e-999999999 takes it minutes and gigabytes.
func Parse(text string) (resource.Quantity, error) {
	if isTooLarge(text) {
		return resource.Quantity{}, fmt.Errorf("%.80q: %w", text, resource.ErrFormatWrong)
	}
	return resource.ParseQuantity(text)
}

// isTooLarge reports whether a text is beyond the bounds above.
func isTooLarge(text string) bool {
	exponent := strings.TrimLeft(text[strings.LastIndexAny(text, "eE")+1:], "+-")
	return len(text) > maxLength || strings.ContainsAny(text, "eE") && len(exponent) > maxExponentDigits
}
