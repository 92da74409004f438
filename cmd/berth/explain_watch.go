package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/terminaltext"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/remote"
)

// errDone ends a watch from within.
var errDone = errors.New("done")

// watchObject explains the object at every change until it is ready or has ended, and returns the last explanation, nil
// if the object is gone. On a terminal it redraws at each change and every second, because the verdict contains times;
// elsewhere it prints each new verdict.
func (f *explainFlags) watchObject(cmd *cobra.Command, config *rest.Config, src explain.Source, of target) (*explain.Explanation, error) {
	watched, err := newWatched(config, f.namespace, of.kind)
	if err != nil {
		return nil, err
	}
	changed := wakeup.NewSignal()
	changed.Notify()
	var last *explain.Explanation
	var failed error
	group, ctx := errgroup.WithContext(cmd.Context())
	group.Go(contain.Func("berth.watchObject", "", func() error { return watched.run(ctx, changed.Notify) }))
	if records, ok := src.Records.(*remote.Client); ok {
		group.Go(contain.Func("berth.watchObject", "", func() error {
			// Without the stream the API's changes still trigger.
			_ = records.Stages(ctx, "", changed.Notify, func(timeline.Change) { changed.Notify() })
			return nil
		}))
	}
	group.Go(contain.Func("berth.watchObject", "", func() error {
		last, failed = f.watchLoop(ctx, cmd, src, of, changed)
		return errDone
	}))
	err = group.Wait()
	switch {
	case cmd.Context().Err() != nil: // interrupted: the last explanation is not final
		return nil, signalExitCode(cmd.Context())
	case !errors.Is(err, errDone):
		return nil, err
	}
	return last, failed
}

// watchLoop explains the object whenever changed is set.
func (f *explainFlags) watchLoop(ctx context.Context, cmd *cobra.Command, src explain.Source, of target, changed wakeup.Signal,
) (*explain.Explanation, error) {
	var tick <-chan time.Time
	terminal := f.output == "" && terminalWidth() > 0
	if terminal {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		tick = ticker.C
	}
	var last *explain.Explanation
	for {
		select {
		case <-ctx.Done():
			return last, nil
		case <-changed.C():
		case <-tick:
		}
		explanation, err := f.explain(ctx, src, of)
		switch {
		case ctx.Err() != nil:
			return last, nil
		case apierrors.IsNotFound(err) && last != nil:
			if f.output != "" { // the end of the output says it
				return nil, nil
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: gone\n", explain.Title(last))
			return nil, err
		case err != nil:
			return nil, err
		}
		fresh := last == nil || last.State != explanation.State || last.Reason != explanation.Reason
		last = explanation
		switch {
		case terminal:
			err = f.repaint(cmd, explanation)
		case fresh && f.output == "json":
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(explanation) // one line each
		case fresh && f.output == "yaml":
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), "---") // the write below reports errors
			err = printAs(cmd, f.output, explanation)
		case fresh:
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %s\n", time.Now().Format("15:04:05.000"), explain.Title(explanation), terminaltext.Line(explanation.Verdict))
		}
		if err != nil || !explanation.Stuck() || explanation.State == explain.Failed {
			return explanation, err
		}
	}
}

// repaint overwrites the screen: it moves the cursor home and clears the rest of each line, which does not flicker.
func (f *explainFlags) repaint(cmd *cobra.Command, explanation *explain.Explanation) error {
	var screen bytes.Buffer
	if err := style().Print(&screen, explanation); err != nil {
		return err
	}
	text := screen.String()
	if width, height, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		text = fit(text, width, height)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "\x1b[H%s\x1b[J", strings.ReplaceAll(text, "\n", "\x1b[K\n"))
	return err
}

var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// fit returns as many lines as a terminal of that size shows: more lines would scroll the verdict, which comes first,
// off the screen. Lines that are wider than the terminal take several rows.
func fit(text string, width, height int) string {
	var kept strings.Builder
	rows := 1 // the cursor stands below the last line
	for line := range strings.Lines(text) {
		length := utf8.RuneCountInString(strings.TrimSuffix(colors.ReplaceAllString(line, ""), "\n"))
		rows += max(1, (length+width-1)/max(width, 1))
		if rows >= height {
			return kept.String() + "…\n"
		}
		kept.WriteString(line)
	}
	return kept.String()
}

// watched is the objects whose changes can alter the explanation of an object of one kind.
type watched struct {
	kind      string
	factory   informers.SharedInformerFactory
	custom    dynamicinformer.DynamicSharedInformerFactory
	informers []cache.SharedIndexInformer
}

// newWatched returns the objects to watch for a kind. It starts nothing.
func newWatched(config *rest.Config, namespace, kind string) (*watched, error) {
	config = rest.CopyConfig(config)
	config.Timeout = 0 // a watch has no end
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client for custom resources: %w", err)
	}
	if !explain.Namespaced(kind) { // names may be of any namespace
		namespace = corev1.NamespaceAll
	}
	w := &watched{
		kind: kind, factory: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace)),
		custom: dynamicinformer.NewFilteredDynamicSharedInformerFactory(objects, 0, namespace, nil),
	}
	w.choose()
	return w, nil
}

// choose chooses the informers.
func (w *watched) choose() {
	core := w.factory.Core().V1()
	snapshots := func() cache.SharedIndexInformer {
		return w.custom.ForResource(api.GroupVersion.WithResource(api.ResourceSnapshots)).Informer()
	}
	w.informers = []cache.SharedIndexInformer{core.Events().Informer()}
	add := func(informers ...cache.SharedIndexInformer) { w.informers = append(w.informers, informers...) }
	switch w.kind {
	case explain.KindPod, explain.KindClaim:
		add(core.Pods().Informer(), core.PersistentVolumeClaims().Informer())
	case explain.KindVolume:
		add(core.PersistentVolumes().Informer())
	case explain.KindNode:
		add(core.Nodes().Informer())
	case explain.KindService, explain.KindName:
		add(core.Pods().Informer(), core.Services().Informer(), w.factory.Discovery().V1().EndpointSlices().Informer())
	case explain.KindSnapshot:
		add(snapshots(), core.PersistentVolumeClaims().Informer())
	case explain.KindGroupSnapshot:
		add(w.custom.ForResource(groupapi.GroupVersion.WithResource(groupapi.ResourceGroups)).Informer(), snapshots(),
			core.PersistentVolumeClaims().Informer())
	default:
		add(core.Pods().Informer(), w.factory.Apps().V1().ReplicaSets().Informer(), w.factory.Apps().V1().Deployments().Informer())
	}
}

// run calls notify at every change until ctx ends.
func (w *watched) run(ctx context.Context, notify func()) error {
	for _, informer := range w.informers {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify() }, UpdateFunc: func(_, _ any) { notify() }, DeleteFunc: func(any) { notify() },
		})
		if err != nil {
			return fmt.Errorf("watch %s: %w", w.kind, err)
		}
	}
	w.factory.StartWithContext(ctx)
	w.custom.Start(ctx.Done())
	<-ctx.Done()
	w.factory.Shutdown()
	w.custom.Shutdown()
	return nil
}
