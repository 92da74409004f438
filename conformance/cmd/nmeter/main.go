// Command nmeter is the part of busybox's program of that name that upstream's node suite uses, because Debian's busybox is
// built without it: `nmeter -d0 '%3t'` prints the time of day with milliseconds, in UTC.
package main

import (
	"fmt"
	"os"
	"time"
)

// format is the time of day with milliseconds.
const format = "%3t"

func main() {
	if len(os.Args) != 3 || os.Args[1] != "-d0" || os.Args[2] != format {
		fmt.Fprintf(os.Stderr, "nmeter: the only supported arguments are -d0 and %s\n", format)
		os.Exit(1)
	}
	fmt.Println(time.Now().UTC().Format("15:04:05.000"))
}
