package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/explain"
)

func TestParseTarget(t *testing.T) {
	for name, test := range map[string]struct {
		flags explainFlags
		args  []string
		want  target
		fails string
	}{
		"slash":             {args: []string{"po/web"}, want: target{explain.KindPod, "web"}},
		"two words":         {args: []string{"PVC", "data"}, want: target{explain.KindClaim, "data"}},
		"group":             {args: []string{"deployments.apps/d"}, want: target{explain.KindDeployment, "d"}},
		"all":               {flags: explainFlags{all: true}},
		"all by -A":         {flags: explainFlags{allNamespaces: true}},
		"nothing":           {fails: "no object given"},
		"no name":           {args: []string{"pod/"}, fails: "no name of a Pod given"},
		"misspelt":          {args: []string{"pds/x"}, fails: `did you mean "pods"?`},
		"unknown":           {args: []string{"gateway/x"}, fails: "pod, pvc, pv, node, replicaset, deployment, service, volumesnapshot, volumegroupsnapshot are known"},
		"service":           {args: []string{"svc/web"}, want: target{explain.KindService, "web"}},
		"name":              {flags: explainFlags{from: "pod/p"}, args: []string{"dns", "web.shop"}, want: target{explain.KindName, "web.shop"}},
		"name, in one word": {flags: explainFlags{from: "p"}, args: []string{"dns/web"}, want: target{explain.KindName, "web"}},
		"name from nowhere": {args: []string{"dns", "web"}, fails: "--from pod/POD"},
		"no name of DNS":    {flags: explainFlags{from: "pod/p"}, args: []string{"dns"}, fails: "no name given"},
		"name from a claim": {flags: explainFlags{from: "pvc/p"}, args: []string{"dns", "web"}, fails: "names a Pod as pod/POD"},
		"from an object":    {flags: explainFlags{from: "pod/p"}, args: []string{"pod/x"}, fails: "--from goes with"},
		"three words":       {args: []string{"pod", "a", "b"}, fails: `unexpected argument "b"`},
		"all and object":    {flags: explainFlags{all: true}, args: []string{"pod/a"}, fails: "--all takes no object"},
		"all and watch":     {flags: explainFlags{all: true, watch: true}, fails: "exclude each other"},
		"-A and -n":         {flags: explainFlags{allNamespaces: true, namespace: "x"}, fails: "exclude each other"},
		"all as svg":        {flags: explainFlags{all: true, pictures: pictures{svg: "x"}}, fails: "--svg draws one object"},
		"watched picture":   {flags: explainFlags{watch: true, pictures: pictures{html: "x"}}, args: []string{"pod/a"}, fails: "--watch excludes"},
		"picture as json":   {flags: explainFlags{output: "json", pictures: pictures{html: "x"}}, args: []string{"pod/a"}, fails: "--output excludes"},
		"one output":        {flags: explainFlags{pictures: pictures{html: "-", svg: "-"}}, args: []string{"pod/a"}, fails: "there is one standard output"},
		"output":            {flags: explainFlags{output: "wide"}, args: []string{"pod/a"}, fails: `--output "wide"`},
		"selector":          {flags: explainFlags{all: true, selector: "a=,=b"}, fails: "--selector"},
		"selector of a pod": {flags: explainFlags{selector: "a=b"}, args: []string{"pod/a"}, fails: "go with --all"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.flags.parse(test.args)
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestExitCodes(t *testing.T) {
	for state, want := range map[explain.State]error{
		explain.Ready: nil, explain.Succeeded: nil, explain.Failed: exitCode(3), explain.Waiting: exitCode(4),
		explain.Terminating: exitCode(5),
	} {
		require.Equal(t, want, (&explainFlags{exitCode: true}).exitCodeFor(&explain.Explanation{State: state}), state)
		require.NoError(t, (&explainFlags{}).exitCodeFor(&explain.Explanation{State: state}))
	}
	require.Equal(t, exitUsage, run(t.Context(), []string{"explain", "pds/x"}))
	require.Equal(t, exitError, run(t.Context(), []string{"--data-dir", t.TempDir(), "explain", "pod/x"}), "no cluster there")
}

func TestMisspeltFlagsAreMet(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"explain", "--namspace", "x", "pod/y"})
	require.ErrorContains(t, root.ExecuteContext(t.Context()), "did you mean --namespace?")
	for _, command := range []string{"version", "doctor"} {
		require.Equal(t, exitUsage, run(t.Context(), []string{command, "-o", "toml"}), command)
	}
}

func TestVersionForMachines(t *testing.T) {
	for format, want := range map[string]string{"json": `"kubernetes": "v1.36`, "yaml": "kubernetes: v1.36"} {
		var out bytes.Buffer
		cmd := newVersion()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"-o", format})
		require.NoError(t, cmd.ExecuteContext(t.Context()))
		require.Contains(t, out.String(), want)
	}
}

func TestAWatchKeepsTheVerdictInSight(t *testing.T) {
	text := "\x1b[1mverdict, which is twenty\x1b[0m\none\ntwo\nthree\n"
	require.Equal(t, text, fit(text, 80, 6))
	require.Equal(t, "\x1b[1mverdict, which is twenty\x1b[0m\none\n…\n", fit(text, 80, 4))
	require.Equal(t, "\x1b[1mverdict, which is twenty\x1b[0m\none\n…\n", fit(text, 20, 5), "the verdict takes two rows")
}

func TestPluginArgs(t *testing.T) {
	require.Equal(t, []string{"explain", "--plugin", "pod/x"}, linkArgs([]string{"/usr/bin/kubectl-why", "pod/x"}))
	require.Equal(t, []string{"up"}, linkArgs([]string{"berth", "up"}))
}

func TestCompletionOffersTypes(t *testing.T) {
	offers, directive := new(explainFlags).complete(&cobra.Command{}, nil, "p")
	require.Equal(t, []cobra.Completion{"pod/", "pvc/", "pv/"}, offers)
	require.NotZero(t, directive&cobra.ShellCompDirectiveNoFileComp)
}

func TestFixAsks(t *testing.T) {
	for input, want := range map[string]bool{"y\n": true, "yes": true, "n\n": false, "\n": false, "": false} {
		ran := false
		d := diagnosis{Name: "x", Severity: severityError, fix: func(context.Context) error { ran = true; return nil }}
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(input))
		cmd.SetErr(new(bytes.Buffer))
		fixed, err := doctorFlags{fix: true}.applyFix(cmd, d)
		require.NoError(t, err)
		require.Equal(t, want, fixed, "%q", input)
		require.Equal(t, want, ran)
		fixed, err = doctorFlags{}.applyFix(cmd, d)
		require.NoError(t, err)
		require.False(t, fixed, "nothing is changed without --fix")
	}
}

// TestAStoppedClusterIsSaidOnce connects to a port on which nothing listens.
func TestAStoppedClusterIsSaidOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"a",
		"clusters":[{"name":"a","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"a","context":{"cluster":"a"}}]}`), 0o600))
	for _, words := range [][]string{{"--all"}, {"pod/a"}, {"pod/a", "-w"}} {
		root := newRoot()
		root.SetArgs(append([]string{"explain", "--kubeconfig", file}, words...))
		err := root.ExecuteContext(t.Context())
		require.ErrorContains(t, err, "http://127.0.0.1:1 cannot be reached: is the cluster running?", "%v", words)
		require.NotContains(t, err.Error(), "\n")
	}
}
