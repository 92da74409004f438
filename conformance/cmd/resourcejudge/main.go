// Command resourcejudge decides on Pods with upstream's CPU, memory and topology managers, as upstream's kubelet composes them. It
// reads a request a line, as JSON, and writes a response a line; what the managers have decided is in their state files.
// The test TestDecisionsEqualUpstreams of the root module compares its own decisions with these.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func main() {
	if os.Getenv("JUDGE_LOG") == "" { // else upstream says why
		klog.SetLogger(logr.Discard())
	}
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "resourcejudge:", err)
		os.Exit(1)
	}
}

// serve handles requests until there are no more. A request that the managers refuse is no error.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	var n *node
	requests, responses := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	for {
		var r request
		if err := requests.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		var resp response
		var err error
		switch {
		case r.Start != nil:
			n, err = newNode(ctx, r.Start)
		case n == nil:
			return fmt.Errorf("a request comes before the start")
		case r.Admit != nil:
			resp = n.admit(r.Admit)
		case r.Release != "":
			n.release(r.Release)
		default:
			return fmt.Errorf("a request is empty")
		}
		if err != nil {
			resp.Error = err.Error()
		}
		if err := responses.Encode(resp); err != nil {
			return fmt.Errorf("write a response: %w", err)
		}
	}
}
