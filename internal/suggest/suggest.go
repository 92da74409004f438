// Package suggest finds what somebody meant to write.
package suggest

// Closest is the known word that the word is most likely to stand for, empty if none is near: at most two letters are
// to be changed, and fewer than are right.
func Closest(word string, known []string) string {
	near, best := "", 3
	for _, candidate := range known {
		if d := distance(word, candidate); d < best && d < len(candidate)-1 && 2*d <= len(candidate) {
			near, best = candidate, d
		}
	}
	return near
}

// distance is how many letters must be put in, taken out or changed to make b of a.
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
