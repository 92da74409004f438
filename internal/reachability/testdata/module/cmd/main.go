// Command cmd uses a worker.
package main

import (
	"fmt"

	"example.com/module/worker"
)

type runner interface{ Run() }

func main() {
	w := worker.New(func() {})
	var r runner = w
	r.Run()
	fmt.Println(w)
	fmt.Println(worker.Map([]int{1}, func(n int) string { return fmt.Sprint(n) }))
}
