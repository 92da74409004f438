// Package suggest finds the word that a misspelt one probably means.
package suggest

// Closest returns the known word with the smallest edit distance to word; empty if none is close: at most two edits, and at
// most half of the letters.
func Closest(word string, known []string) string {
	near, best := "", 3
	for _, candidate := range known {
		if d := distance(word, candidate); d < best && d < len(candidate)-1 && 2*d <= len(candidate) {
			near, best = candidate, d
		}
	}
	return near
}

// distance returns the edit distance of a and b: the number of letters to insert, delete or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner = row[j+1]
			row[j+1] = min(change, row[j]+1, corner+1)
		}
	}
	return row[len(b)]
}
