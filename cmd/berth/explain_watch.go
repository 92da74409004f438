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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/remote"
)

// errDone ends a watch from within.
var errDone = errors.New("done")

// watchObject explains the object at every change until it is ready or has ended, and returns the last explanation, nil
// if the object is gone. On a terminal it redraws at each change and every second, because the verdict contains times;
// elsewhere it prints each new verdict.
func (f *explainFlags) watchObject(cmd *cobra.Command, config *rest.Config, src explain.Source, of target) (*explain.Explanation, error) {
	watching := rest.CopyConfig(config)
	watching.Timeout = 0 // a watch has no end
	client, err := kubernetes.NewForConfig(watching)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	changed := wakeup.NewSignal()
	changed.Notify()
	var last *explain.Explanation
	var failed error
	group, ctx := errgroup.WithContext(cmd.Context())
	group.Go(contain.Func("berth.watchObject", "", func() error { return watchAPI(ctx, client, f.namespace, of.kind, changed.Notify) }))
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %s\n", time.Now().Format("15:04:05.000"), explain.Title(explanation), explanation.Verdict)
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

// watchAPI calls notify at every change that can alter the explanation.
func watchAPI(ctx context.Context, client kubernetes.Interface, namespace, kind string, notify func()) error {
	if !explain.Namespaced(kind) { // names may be of any namespace
		namespace = corev1.NamespaceAll
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	core := factory.Core().V1()
	watched := []cache.SharedIndexInformer{core.Events().Informer()}
	switch kind {
	case explain.KindPod:
		watched = append(watched, core.Pods().Informer(), core.PersistentVolumeClaims().Informer())
	case explain.KindClaim:
		watched = append(watched, core.Pods().Informer(), core.PersistentVolumeClaims().Informer())
	case explain.KindVolume:
		watched = append(watched, core.PersistentVolumes().Informer())
	case explain.KindNode:
		watched = append(watched, core.Nodes().Informer())
	case explain.KindService, explain.KindName:
		watched = append(watched, core.Pods().Informer(), core.Services().Informer(), factory.Discovery().V1().EndpointSlices().Informer())
	default:
		watched = append(watched, core.Pods().Informer(), factory.Apps().V1().ReplicaSets().Informer(),
			factory.Apps().V1().Deployments().Informer())
	}
	for _, informer := range watched {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify() }, UpdateFunc: func(_, _ any) { notify() }, DeleteFunc: func(any) { notify() },
		})
		if err != nil {
			return fmt.Errorf("watch %s: %w", kind, err)
		}
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}
