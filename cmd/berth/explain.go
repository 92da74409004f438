package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline/remote"
)

// The exit codes of `berth explain --exit-code`.
const (
	exitFailed      = 3
	exitWaiting     = 4
	exitTerminating = 5
)

type explainFlags struct {
	kubeconfig, namespace, output string
	exitCode                      bool
}

func newExplain() *cobra.Command {
	var flags explainFlags
	cmd := &cobra.Command{
		Use: "explain pod NAME", Aliases: []string{"why"},
		Short:   "Say why a Pod is not running yet, or how it came to run",
		Example: "  berth explain pod demo\n  berth explain pod/demo -n default -o json\n  berth why pod demo --exit-code",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := podName(args)
			if err != nil {
				return usageError{err}
			}
			return flags.run(cmd, name)
		},
	}
	cmd.Flags().StringVar(&flags.kubeconfig, "kubeconfig", "", "another cluster's kubeconfig; berth's own by default")
	cmd.Flags().StringVarP(&flags.namespace, "namespace", "n", "default", "the Pod's namespace")
	cmd.Flags().StringVarP(&flags.output, "output", "o", "", "output format: json or yaml")
	cmd.Flags().BoolVar(&flags.exitCode, "exit-code", false, "exit with 0 if ready or succeeded, 3 failed, 4 waiting, 5 terminating")
	return cmd
}

// podName reads "pod NAME" or "pod/NAME", as kubectl does.
func podName(args []string) (string, error) {
	var kind, name string
	switch len(args) {
	case 1:
		kind, name, _ = strings.Cut(args[0], "/")
	case 2:
		kind, name = args[0], args[1]
	}
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
	case "":
		return "", errors.New("which object? Say `berth explain pod NAME`")
	default:
		return "", fmt.Errorf("cannot explain %q: only Pods can be explained", kind)
	}
	if name == "" {
		return "", errors.New("which Pod? Say `berth explain pod NAME`")
	}
	return name, nil
}

func (f explainFlags) run(cmd *cobra.Command, name string) error {
	var records explain.Records
	path := f.kubeconfig
	if path == "" {
		layout, err := layoutOf(cmd)
		if err != nil {
			return err
		}
		path = layout.AdminKubeconfig()
		if _, err := os.Stat(layout.Socket()); err == nil {
			records = remote.NewClient(layout.Socket())
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make an API client: %w", err)
	}
	answer, err := explain.Pod(cmd.Context(), client, records, f.namespace, name, time.Now())
	if err != nil {
		return err
	}
	if err := f.print(cmd, answer); err != nil {
		return err
	}
	if !f.exitCode {
		return nil
	}
	switch answer.State {
	case explain.Failed:
		return exitCode(exitFailed)
	case explain.Waiting:
		return exitCode(exitWaiting)
	case explain.Terminating:
		return exitCode(exitTerminating)
	}
	return nil
}

func (f explainFlags) print(cmd *cobra.Command, answer *explain.Answer) error {
	out := cmd.OutOrStdout()
	switch f.output {
	case "":
		return explain.Print(out, answer, terminalWidth())
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	case "yaml":
		data, err := yaml.Marshal(answer)
		if err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		_, err = out.Write(data)
		return err
	default:
		return usageError{fmt.Errorf("--output %q: json and yaml are known", f.output)}
	}
}

// terminalWidth is the width of standard output, 0 if it is not a terminal.
func terminalWidth() int {
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		return width
	}
	return 0
}
