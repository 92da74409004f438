package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/reconcile"
)

// The public names, as they are documented: this fails to compile if one is lost or changes its type.
var (
	_ interface {
		Reconcile(context.Context, reconcile.Request) (reconcile.Result, error)
	} = reconcile.Reconciler(nil)

	_ = reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "name"}}
	_ = reconcile.Result{Requeue: true, RequeueAfter: time.Second}
	_ = reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	})
)

func TestFuncPassesEverythingThrough(t *testing.T) {
	want := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "name"}}
	type marker struct{}
	var r reconcile.Reconciler
	r = reconcile.Func(func(ctx context.Context, got reconcile.Request) (reconcile.Result, error) {
		require.Equal(t, want, got)
		require.Equal(t, "here", ctx.Value(marker{}))
		return reconcile.Result{RequeueAfter: time.Minute}, io.EOF
	})
	result, err := r.Reconcile(context.WithValue(t.Context(), marker{}, "here"), want)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, reconcile.Result{RequeueAfter: time.Minute}, result)
}

func TestTerminalError(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		terminal bool
	}{
		"nil":              {nil, false},
		"plain":            {io.EOF, false},
		"marked":           {reconcile.TerminalError(io.EOF), true},
		"marked nil":       {reconcile.TerminalError(nil), true},
		"wrapped":          {fmt.Errorf("sync: %w", reconcile.TerminalError(io.EOF)), true},
		"joined":           {errors.Join(io.ErrNoProgress, reconcile.TerminalError(io.EOF)), true},
		"cause is no mark": {fmt.Errorf("x: %v", reconcile.TerminalError(io.EOF)), false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.terminal, reconcile.IsTerminal(tc.err))
			require.Equal(t, tc.terminal, errors.Is(tc.err, reconcile.TerminalError(nil)))
		})
	}
	require.ErrorIs(t, reconcile.TerminalError(io.EOF), io.EOF)
	require.Equal(t, "terminal error: EOF", reconcile.TerminalError(io.EOF).Error())
}

func TestResultIsZero(t *testing.T) {
	require.True(t, reconcile.Result{}.IsZero())
	require.False(t, reconcile.Result{Requeue: true}.IsZero())
	require.False(t, reconcile.Result{RequeueAfter: 1}.IsZero())
}
