package main

import (
	"context"
	"os"
	"strings"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/shellword"
)

// explain explains the object. The next command of the result is one for the cluster that this command uses.
func (f *explainFlags) explain(ctx context.Context, src explain.Source, of target) (*explain.Explanation, error) {
	var explanation *explain.Explanation
	var err error
	if of.kind == explain.KindName {
		explanation, err = explain.DNS(ctx, src, f.namespace, f.pod(), of.name)
	} else {
		explanation, err = explain.Explain(ctx, src, of.kind, f.namespace, of.name)
	}
	if err != nil {
		return nil, err
	}
	explanation.Next = f.forThisCluster(explanation.Next)
	return explanation, nil
}

// forThisCluster adds the flags to a berth command that make it use the same cluster as this command does: a user who
// copies it must not reach another cluster.
func (f *explainFlags) forThisCluster(next string) string {
	verb, rest, ok := strings.Cut(strings.TrimPrefix(next, "berth "), " ")
	if !ok {
		return next
	}
	// `berth kubectl why` runs the plugin with an environment that the caller's shell does not have.
	plugin := f.plugin && os.Getenv("KUBECONFIG") != f.layout.AdminKubeconfig()
	if f.kubeconfig != "" {
		verb += " --kubeconfig " + shellword.Quote(f.kubeconfig)
	}
	if f.context != "" {
		verb += " --context " + shellword.Quote(f.context)
	}
	if f.socket != "" && strings.HasPrefix(verb, "explain") {
		verb += " --socket " + shellword.Quote(f.socket)
	}
	switch command := verb + " " + rest; {
	case plugin && strings.HasPrefix(command, "explain "):
		return "kubectl why " + strings.TrimPrefix(command, "explain ")
	case plugin:
		return command
	default:
		return f.layout.Hint(command)
	}
}
