package controller_test

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

// TestSourcesThatAreMissing passes nil for what a source needs.
func TestSourcesThatAreMissing(t *testing.T) {
	pods := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{})
	for want, source := range map[string]controller.Source[reconcile.Request]{
		"Watch was called with nil":                                            nil,
		"source informer: an informer and a function of keys are required":     controller.For(nil),
		`source nowhere: poll "nowhere": the function that lists is nil`:       controller.Poll[reconcile.Request](controller.PollConfig{Name: "nowhere", Period: 1}, nil),
		"informer of *v1.Pod: an informer and a function of keys are required": controller.Watches[*corev1.Pod, reconcile.Request](pods, nil),
	} {
		c, err := controller.New(&recordingReconciler{}, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Watch(source)
		require.ErrorContains(t, c.Start(t.Context()), want)
	}
}

func TestASourceThatComesTooLateIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c, err := controller.New(&recordingReconciler{}, controller.Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))}, controller.Config{Name: "test"})
		require.NoError(t, err)
		stop := start(t, c)
		c.Watch(controller.Channel("late", make(chan reconcile.Request)))
		require.Contains(t, log.String(), "Watch was called after Start")
		require.Contains(t, log.String(), "source=late")
		c.Watch(nil)
		require.Contains(t, log.String(), "source=nil")
		stop()
	})
}
