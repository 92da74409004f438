package localstorage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

const mi = 1 << 20

// pod returns a Pod with two containers, a and b, whose limits are given, and an emptyDir v with a sizeLimit; "" is none.
func pod(a, b, volume string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "p"}}
	for _, c := range []struct{ name, limit string }{{"a", a}, {"b", b}} {
		one := corev1.Container{Name: c.name}
		if c.limit != "" {
			one.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(c.limit)}
		}
		p.Spec.Containers = append(p.Spec.Containers, one)
	}
	source := &corev1.EmptyDirVolumeSource{}
	if volume != "" {
		source.SizeLimit = ptr.To(resource.MustParse(volume))
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: source}}}
	return p
}

func usage(layer, log, volume int64) Usage {
	return Usage{Layers: map[string]int64{"a": layer}, Logs: map[string]int64{"a": log}, Volumes: map[string]int64{"v": volume}}
}

func hosts(bytes int64) Usage {
	used := usage(0, 0, 0)
	used.Hosts = bytes
	return used
}

func TestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		pod       *corev1.Pod
		used      Usage
		elsewhere bool
		message   string
		signal    string
		left      int64
	}{
		"nothing":                             {pod("4Mi", "", "2Mi"), usage(0, 0, 0), false, "", "", 2 * mi},
		"at the limit":                        {pod("4Mi", "", ""), usage(2*mi, mi, mi), false, "", "", 0},
		"emptyDir":                            {pod("9Mi", "", "2Mi"), usage(0, 0, 2*mi+1), false, `Usage of EmptyDir volume "v" exceeds the limit "2Mi". `, SignalEmptyDir, 0},
		"Pod":                                 {pod("4Mi", "", ""), usage(2*mi, mi, mi+1), false, `Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. `, SignalPod, 0},
		"Pod by its hosts file":               {pod("4Mi", "", ""), hosts(4*mi + 1), false, `Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. `, SignalPod, 0},
		"Pod of two limits":                   {pod("4Mi", "4Mi", ""), usage(3*mi, mi, 4*mi+1), false, `Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. `, SignalPod, 0},
		"container":                           {pod("4Mi", "8Mi", ""), usage(3*mi, mi+1, 0), false, `Container a exceeded its local ephemeral storage limit "4Mi". `, SignalContainer, 0},
		"container's layer on another disk":   {pod("4Mi", "8Mi", ""), usage(5*mi, mi, 0), true, "", "", 3 * mi},
		"volumes are not the container's own": {pod("4Mi", "8Mi", ""), usage(0, 0, 6*mi), false, "", "", 4 * mi},
	} {
		t.Run(name, func(t *testing.T) {
			excess, left := check(test.pod, &test.used, !test.elsewhere)
			if test.message == "" {
				require.Nil(t, excess)
			} else {
				require.Equal(t, &Excess{test.signal, test.message}, excess)
			}
			require.Equal(t, test.left, left)
		})
	}
}

func TestLimited(t *testing.T) {
	inMemory, zero := pod("", "", "1Mi"), pod("", "", "0")
	inMemory.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want [2]bool
	}{
		"none": {pod("", "", ""), [2]bool{}}, "volume": {pod("", "", "1Mi"), [2]bool{true, false}}, "container": {pod("", "1Gi", ""), [2]bool{true, true}},
		"volume in memory": {inMemory, [2]bool{}}, "limit of 0": {zero, [2]bool{}},
	} {
		limited, containers := Limited(test.pod)
		require.Equal(t, test.want, [2]bool{limited, containers}, name)
	}
}

// TestPodsAreMeasuredWhenTheDiskFills counts the measurements of a Pod with a limit of 100 MiB.
func TestPodsAreMeasuredWhenTheDiskFills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards all below; the test holds it but in its pauses
		mu.Lock()
		pause := func(d time.Duration) {
			mu.Unlock()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
		}
		var pods []*corev1.Pod
		free, used, measured, read := int64(1000*mi), int64(0), 0, 0
		var failure error
		var exceeded []string
		w, err := New(Deps{
			Pods: func() []*corev1.Pod {
				mu.Lock()
				defer mu.Unlock()
				return pods
			},
			Measure: func(context.Context, *corev1.Pod, bool) (Usage, error) {
				mu.Lock()
				defer mu.Unlock()
				if measured++; failure != nil {
					return Usage{}, failure
				}
				return usage(0, 0, used), nil
			},
			Free: func(context.Context) (int64, bool, error) {
				mu.Lock()
				defer mu.Unlock()
				read++
				return free, true, nil
			},
			OnExceeded: func(_ *corev1.Pod, excess Excess) {
				mu.Lock()
				defer mu.Unlock()
				exceeded = append(exceeded, excess.Signal)
			},
			Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Start(ctx) }()
		w.PodChanged(pod("", "", ""))
		pause(time.Hour)
		require.Zero(t, read, "no Pod has a limit")

		pods = []*corev1.Pod{pod("", "", "100Mi")}
		w.PodChanged(pods[0])
		pause(2 * time.Second)
		require.Equal(t, 1, measured)
		pause(10 * time.Minute)
		require.LessOrEqual(t, measured, 1+10*60/30, "an idle Pod is hardly measured")
		measured = 0
		free -= 60 * mi // which may be the Pod's
		pause(11 * time.Second)
		require.Equal(t, 1, measured)
		used, failure = 101*mi, errors.New("busy")
		free -= 60 * mi
		pause(11 * time.Second)
		require.Empty(t, exceeded)
		failure = nil
		pause(11 * time.Second)
		require.Equal(t, []string{SignalEmptyDir}, exceeded)
		pause(time.Minute)
		require.Len(t, exceeded, 1, "it is reported once")

		pods = nil
		pause(time.Minute)
		read = 0
		pause(time.Hour)
		require.Zero(t, read, "no Pod is left")
		mu.Unlock()
		cancel()
		require.NoError(t, <-done)
	})
}

// TestLimitOfAPodThatIsNotMeasuredCompletely: a volume that cannot be measured must not keep the others from their limits.
func TestLimitOfAPodThatIsNotMeasuredCompletely(t *testing.T) {
	var exceeded []string
	w, err := New(Deps{
		Pods: func() []*corev1.Pod { return []*corev1.Pod{pod("", "", "100Mi")} },
		Measure: func(context.Context, *corev1.Pod, bool) (Usage, error) {
			return usage(0, 0, 101*mi), errors.New("another volume: input/output error")
		},
		Free:       func(context.Context) (int64, bool, error) { return 1000 * mi, true, nil },
		OnExceeded: func(_ *corev1.Pod, excess Excess) { exceeded = append(exceeded, excess.Signal) },
		Clock:      clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	w.round(t.Context())
	w.round(t.Context())
	require.Equal(t, []string{SignalEmptyDir}, exceeded, "it is reported once")
}

func TestDependenciesAreRequired(t *testing.T) {
	_, err := New(Deps{})
	require.ErrorContains(t, err, "localstorage: Deps.Pods")
}
