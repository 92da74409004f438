// Command critest prints the names of the images with a web server that critest runs, one a line. Its module pins critest.
package main

import (
	"fmt"

	"sigs.k8s.io/cri-tools/pkg/framework"
	_ "sigs.k8s.io/cri-tools/pkg/validate" // pinned for the tests alone
)

func main() {
	for _, name := range []string{"nginx:1.14-2", "httpd:2.4.39-4"} {
		fmt.Println(framework.DefaultRegistryE2ETestImagesPrefix + name)
	}
}
