package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/suggest"
	"github.com/berth-dev/berth/internal/terminaltext"
	"github.com/berth-dev/berth/timeline/remote"
	"github.com/berth-dev/berth/up"
)

// The exit codes of `berth explain --exit-code`, besides 0 (ready or succeeded), 1 (error) and 2 (wrong usage).
const (
	exitFailed      = 3
	exitWaiting     = 4
	exitTerminating = 5
)

// pluginName is the name under which kubectl finds berth as `kubectl why`: a link of this name on the PATH.
const pluginName = "kubectl-why"

// explainFlags are the flags of `berth explain`. It has many fields because each flag is one.
type explainFlags struct {
	kubeconfig, context, namespace, selector, output, socket string
	// from is the Pod of whose view a name is explained, runtime the container runtime of a node that is not berth up's.
	from, runtime                               string
	all, allNamespaces, watch, exitCode, plugin bool
	timeout                                     time.Duration
	pictures                                    pictures
	// layout is that of the cluster of --data-dir; connect sets it.
	layout up.Layout
}

func newExplain() *cobra.Command {
	var flags explainFlags
	cmd := &cobra.Command{
		Use: "explain TYPE/NAME", Aliases: []string{"why"},
		Short: "Explain why a Pod, claim, volume, node, Service or ReplicaSet is not ready, or how it became ready",
		Long: "Says in one sentence what the object waits for, since when, and what holds it; then lists its stages, where the time\n" +
			"went, the evidence, and the next safe command. With --all, lists everything that is stuck, the worst first.\n\n" +
			"Types: pod, pvc, pv, node, replicaset, deployment, service, and kubectl's other names for them.\n\n" +
			"`berth explain dns NAME --from pod/POD` resolves a name as that Pod does: by its resolver file, its search list and from\n" +
			"its network. It shows what each server responds, and which part fails.\n\n" +
			"Exit codes: 0 explained, 1 not possible (no such object, no cluster), 2 wrong usage. With --exit-code also\n" +
			"3 failed, 4 waiting, 5 terminating; with --all, the code of the worst object.",
		Example: "  berth explain pod/demo\n  berth why pvc/data -n shop -o json\n  berth explain --all\n" +
			"  berth explain pod/demo -w\n  berth explain pod/demo --html why.html\n  berth explain svc/web\n  berth explain dns web.shop --from pod/demo\n  ln -s $(readlink -f $(which berth)) /usr/local/bin/kubectl-why && kubectl why pod/demo",
		ValidArgsFunction: flags.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := flags.parse(args)
			if err != nil {
				return usageError{err}
			}
			return flags.run(cmd, target)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "another cluster's kubeconfig; berth's own by default")
	f.StringVar(&flags.socket, "socket", "", "`path` of the --socket of a 'berth node' or 'berth controllers' to read stages from (default: that of --data-dir)")
	f.StringVar(&flags.from, "from", "", "with dns: the `pod/NAME` that resolves the name")
	f.StringVar(&flags.runtime, "runtime-endpoint", "", "`path` of the container runtime's socket, on a node of another cluster: to see sockets and names there")
	f.StringVar(&flags.context, "context", "", "the kubeconfig's context to use")
	f.StringVarP(&flags.namespace, "namespace", "n", "", "the object's namespace (default: the kubeconfig's)")
	f.BoolVar(&flags.all, "all", false, "list everything that is stuck, the worst first (in all namespaces unless -n is given)")
	f.BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "with --all: all namespaces, nodes and volumes")
	f.StringVarP(&flags.selector, "selector", "l", "", "with --all: only objects with these labels")
	f.BoolVarP(&flags.watch, "watch", "w", false, "explain again at every change, until the object is ready or has ended")
	f.StringVarP(&flags.output, "output", "o", "", "output format: json or yaml")
	f.BoolVar(&flags.exitCode, "exit-code", false, "exit with 0 if ready or succeeded, 3 failed, 4 waiting, 5 terminating")
	f.DurationVar(&flags.timeout, "request-timeout", 10*time.Second, "timeout of one request to the API server")
	flags.pictures.addFlags(cmd)
	f.BoolVar(&flags.plugin, "plugin", false, "use KUBECONFIG and ~/.kube/config as kubectl does")
	_ = f.MarkHidden("plugin") // fails only for a flag that does not exist
	return cmd
}

// target is the object to explain; an empty kind means everything that is stuck.
type target struct{ kind, name string }

// parse reads "TYPE NAME" or "TYPE/NAME", as kubectl does, and checks the flags against one another.
func (f *explainFlags) parse(args []string) (target, error) {
	if err := checkOutput(f.output); err != nil {
		return target{}, err
	}
	if f.allNamespaces && f.namespace != "" {
		return target{}, errors.New("--all-namespaces and --namespace exclude each other")
	}
	if _, err := labels.Parse(f.selector); err != nil {
		return target{}, fmt.Errorf("--selector: %w", err)
	}
	if f.all || len(args) == 0 && (f.allNamespaces || f.selector != "") {
		if len(args) > 0 {
			return target{}, fmt.Errorf("--all takes no object: unexpected argument %q", args[0])
		}
		if f.watch {
			return target{}, errors.New("--all and --watch exclude each other: watch one object")
		}
		return target{}, f.pictures.check(f, true)
	}
	if err := f.pictures.check(f, false); err != nil {
		return target{}, err
	}
	if f.selector != "" || f.allNamespaces {
		return target{}, errors.New("--selector and --all-namespaces go with --all, not with one object")
	}
	var word, name string
	switch len(args) {
	case 0:
		return target{}, errors.New("no object given: use `berth explain pod/NAME`, or `berth explain --all`")
	case 1:
		word, name, _ = strings.Cut(args[0], "/")
	case 2:
		word, name = args[0], args[1]
	default:
		return target{}, fmt.Errorf("one object at a time: unexpected argument %q", args[2])
	}
	if word == wordDNS {
		return f.parseName(name)
	}
	if f.from != "" {
		return target{}, errors.New("--from goes with `dns NAME`, not with an object")
	}
	kind, err := explain.ParseKind(word)
	if err != nil {
		return target{}, err
	}
	if name == "" || strings.Contains(name, "/") {
		return target{}, fmt.Errorf("no name of a %s given: use `berth explain %s/NAME`", kind, word)
	}
	return target{kind, name}, nil
}

// connect returns the API client that the flags name, and the records of the running berth if there is one.
func (f *explainFlags) connect(cmd *cobra.Command) (*rest.Config, explain.Source, error) {
	var src explain.Source
	layout, err := layoutOf(cmd)
	if errors.Is(err, fs.ErrPermission) && (f.kubeconfig != "" || f.plugin) { // an ordinary user with a kubeconfig of one's own
		layout, err = layoutWithoutState(cmd)
	}
	if err != nil {
		return nil, src, err
	}
	f.layout = layout
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	switch {
	case f.kubeconfig != "":
		rules.ExplicitPath = f.kubeconfig
	case !f.plugin:
		rules.ExplicitPath = layout.AdminKubeconfig()
		if _, err := os.Stat(rules.ExplicitPath); err != nil {
			return nil, src, fmt.Errorf("no cluster found in %s: start one with `berth up`, or name one with --data-dir or --kubeconfig (%w)",
				layout.DataDir, err)
		}
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // client-go's own error suggests environment variables
		return nil, src, fmt.Errorf("%s names no cluster: give another one with --kubeconfig",
			cmp.Or(rules.ExplicitPath, "neither KUBECONFIG nor ~/.kube/config"))
	}
	if err != nil {
		return nil, src, fmt.Errorf("read the kubeconfig: %w", err)
	}
	if f.namespace == "" && !f.allNamespaces && !f.all {
		if f.namespace, _, err = loader.Namespace(); err != nil {
			return nil, src, fmt.Errorf("read the kubeconfig's namespace: %w", err)
		}
	}
	config.QPS, config.Timeout = -1, f.timeout
	if src.Client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, src, fmt.Errorf("create an API client: %w", err)
	}
	// Records are looked up by UID, so records of another cluster cannot match.
	socket := cmp.Or(f.socket, layout.Socket())
	if _, err := os.Stat(socket); err == nil {
		src.Records = remote.NewClient(socket)
	} else if f.socket != "" {
		return nil, src, fmt.Errorf("--socket: %w", err)
	}
	if err := f.connectNetwork(&src, config); err != nil {
		return nil, src, err
	}
	return config, src, nil
}

func (f *explainFlags) run(cmd *cobra.Command, of target) error {
	config, src, err := f.connect(cmd)
	if err != nil {
		return err
	}
	return explainDialError(config.Host, f.explainAndPrint(cmd, config, src, of))
}

// explainAndPrint explains the object, or everything that is stuck, and prints the result.
func (f *explainFlags) explainAndPrint(cmd *cobra.Command, config *rest.Config, src explain.Source, of target) error {
	if of.kind == "" {
		return f.runAll(cmd, src)
	}
	if f.watch {
		explanation, err := f.watchObject(cmd, config, src, of)
		if err != nil || explanation == nil {
			return err
		}
		return f.exitCodeFor(explanation)
	}
	explanation, err := f.explain(cmd.Context(), src, of)
	if apierrors.IsNotFound(err) {
		return f.notFound(cmd, of, err)
	}
	if err != nil {
		return err
	}
	if err := f.print(cmd, explanation); err != nil {
		return err
	}
	return f.exitCodeFor(explanation)
}

// notFound adds the closest existing name to a "not found" error.
func (f *explainFlags) notFound(cmd *cobra.Command, of target, err error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	if of.kind == explain.KindName {
		of = target{explain.KindPod, f.pod()}
	}
	names, listErr := f.names(ctx, cmd, of.kind)
	if near := suggest.Closest(of.name, names); listErr == nil && near != "" {
		return fmt.Errorf("%w: did you mean %q?", err, near)
	}
	if explain.Namespaced(of.kind) {
		return fmt.Errorf("%w: if it is in another namespace, use -n", err)
	}
	return err
}

// exitCodeFor returns the exit code for the object's state, nil without --exit-code.
func (f *explainFlags) exitCodeFor(explanation *explain.Explanation) error {
	if !f.exitCode {
		return nil
	}
	switch explanation.State {
	case explain.Failed:
		return exitCode(exitFailed)
	case explain.Waiting:
		return exitCode(exitWaiting)
	case explain.Terminating:
		return exitCode(exitTerminating)
	}
	return nil
}

func (f *explainFlags) runAll(cmd *cobra.Command, src explain.Source) error {
	explanations, unseen, err := explain.Stuck(cmd.Context(), src, f.namespace, f.selector)
	if err != nil {
		return err
	}
	for _, explanation := range explanations {
		explanation.Next = f.forThisCluster(explanation.Next)
	}
	if f.pictures.wanted() {
		err = f.pictures.write(cmd, true, explanations, unseen)
	} else if f.output != "" {
		list := newList(explain.APIVersion, explain.Kind, explanations)
		list.Unseen = unseen
		err = printAs(cmd, f.output, list)
	} else {
		err = f.printList(cmd, explanations, unseen)
	}
	if err != nil || len(explanations) == 0 {
		return err
	}
	return f.exitCodeFor(explanations[0])
}

func (f *explainFlags) printList(cmd *cobra.Command, explanations []*explain.Explanation, unseen []string) error {
	for _, text := range unseen {
		fmt.Fprintf(cmd.ErrOrStderr(), "berth: not seen: %s\n", terminaltext.Line(text))
	}
	if len(explanations) == 0 {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "Nothing is stuck.")
		return err
	}
	return style().PrintList(cmd.OutOrStdout(), explanations, time.Now())
}

func (f *explainFlags) print(cmd *cobra.Command, explanation *explain.Explanation) error {
	if f.pictures.wanted() {
		return f.pictures.write(cmd, false, []*explain.Explanation{explanation}, nil)
	}
	if f.output != "" {
		return printAs(cmd, f.output, explanation)
	}
	return style().Print(cmd.OutOrStdout(), explanation)
}

// completionTimeout bounds shell completion: no names are better than a shell that hangs.
const completionTimeout = 2 * time.Second

// complete offers types, then names of objects: "po<TAB>" and "pod/de<TAB>" and "pod de<TAB>".
func (f *explainFlags) complete(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	word, _, slash := strings.Cut(typed, "/")
	switch {
	case len(args) == 0 && !slash:
		var words []cobra.Completion
		for _, kind := range explain.Kinds() {
			if first := explain.ShortKind(kind); strings.HasPrefix(first, typed) {
				words = append(words, first+"/")
			}
		}
		return words, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	case len(args) == 1 && !slash:
		word = args[0]
	case len(args) > 0:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	kind, err := explain.ParseKind(word)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	names, err := f.names(ctx, cmd, kind)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var offers []cobra.Completion
	for _, name := range names {
		if slash {
			name = word + "/" + name
		}
		if strings.HasPrefix(name, typed) {
			offers = append(offers, name)
		}
	}
	return offers, cobra.ShellCompDirectiveNoFileComp
}

func (f *explainFlags) names(ctx context.Context, cmd *cobra.Command, kind string) ([]string, error) {
	_, src, err := f.connect(cmd)
	if err != nil {
		return nil, err
	}
	path := "/api/v1"
	switch kind {
	case explain.KindReplicaSet, explain.KindDeployment:
		path = "/apis/apps/v1"
	case explain.KindSnapshot:
		path = "/apis/snapshot.storage.k8s.io/v1"
	case explain.KindGroupSnapshot:
		path = "/apis/groupsnapshot.storage.k8s.io/v1beta2"
	}
	request := src.Client.CoreV1().RESTClient().Get().AbsPath(path)
	if explain.Namespaced(kind) {
		request = request.AbsPath(path, "namespaces", f.namespace)
	}
	var list metav1.PartialObjectMetadataList
	data, err := request.Suffix(strings.ToLower(kind)+"s").
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", kind, err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
