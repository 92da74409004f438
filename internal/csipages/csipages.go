// Package csipages reads the lists of CSI drivers, which come in pages.
package csipages

import "fmt"

// Each calls read for each page of a list: with an empty token for the first one, then with the token that the page before has returned. It
// is an error if a token comes twice: the list of such a driver has no end.
func Each(read func(token string) (next string, err error)) error {
	seen := map[string]bool{}
	for token := ""; ; {
		next, err := read(token)
		if err != nil || next == "" {
			return err
		}
		if seen[next] {
			return fmt.Errorf("the driver returns page %q again and again", next)
		}
		seen[next], token = true, next
	}
}
