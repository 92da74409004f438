package timeline_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/timeline"
)

func ref(uid string) timeline.Ref {
	return timeline.Ref{Kind: "Pod", Namespace: "default", Name: "web", UID: types.UID(uid)}
}

func TestStagesHaveAttemptsTimesAndErrors(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(100, 0))
	rec := timeline.New(clock, 0)

	first := rec.Begin(ref("a"), "kubelet", timeline.StageVolume, "data")
	clock.Step(time.Second)
	first.End(errors.New("no such claim"))
	second := rec.Begin(ref("a"), "kubelet", timeline.StageVolume, "data")
	other := rec.Begin(ref("a"), "kubelet", timeline.StageVolume, "config")
	clock.Step(2 * time.Second)
	second.End(nil)

	record, ok := rec.Record("a")
	require.True(t, ok)
	require.Len(t, record.Stages, 3)
	require.Equal(t, "no such claim", record.Stages[0].Error)
	require.Equal(t, time.Second, record.Stages[0].End.Sub(record.Stages[0].Start))
	require.Equal(t, 2, record.Stages[1].Attempt)
	require.True(t, record.Stages[1].Done())
	require.Empty(t, record.Stages[1].Error)
	require.Equal(t, 1, record.Stages[2].Attempt, "another subject counts for itself")
	require.False(t, record.Stages[2].Done())
	other.End(nil)
}

func TestMarkingAgainChangesNothing(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 0)
	for range 3 {
		rec.Mark(ref("a"), "kubelet", timeline.StageReady, "", nil)
	}
	rec.Mark(ref("a"), "kubelet", timeline.StageReady, "", errors.New("probe failed"))
	rec.Mark(ref("a"), "kubelet", timeline.StageReady, "", nil)
	record, _ := rec.Record("a")
	require.Len(t, record.Stages, 3)
}

func TestRecorderIsBounded(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 3)
	for i := range 5 {
		rec.Mark(ref(fmt.Sprint(i)), "kubelet", timeline.StageSeen, "", nil)
	}
	_, ok := rec.Record("1")
	require.False(t, ok, "the objects touched longest ago are forgotten")
	_, ok = rec.Record("2")
	require.True(t, ok)

	for range 1000 {
		rec.Begin(ref("4"), "kubelet", timeline.StageStart, "main").End(nil)
	}
	record, _ := rec.Record("4")
	require.Less(t, len(record.Stages), 200)
	require.Equal(t, timeline.StageSeen, record.Stages[0].Name, "the first stages are kept")
	require.Equal(t, 1000, record.Stages[len(record.Stages)-1].Attempt, "and so are the newest")
	require.Equal(t, 1001, len(record.Stages)+record.Dropped)
}

func TestTheStartOfTheClusterIsKept(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 2)
	cluster := timeline.Ref{Kind: timeline.KindCluster, Name: "c", UID: "c"}
	rec.Begin(cluster, "up", timeline.StageStarting, "etcd").End(nil)
	for i := range 5 {
		rec.Mark(ref(fmt.Sprint(i)), "kubelet", timeline.StageSeen, "", nil)
	}
	_, ok := rec.Record("c")
	require.True(t, ok)
	_, ok = rec.Record("4")
	require.True(t, ok)
	_, ok = rec.Record("3")
	require.False(t, ok)
	one := timeline.New(clock.RealClock{}, 1)
	one.Mark(cluster, "up", timeline.StageStarting, "etcd", nil)
	one.Mark(ref("a"), "kubelet", timeline.StageSeen, "", nil)
	_, ok = one.Record("a")
	require.True(t, ok, "nothing else can make place")
}

func TestRecordIsACopy(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 0)
	rec.Mark(ref("a"), "kubelet", timeline.StageSeen, "", nil)
	record, _ := rec.Record("a")
	record.Stages[0].Name = "changed"
	again, _ := rec.Record("a")
	require.Equal(t, timeline.StageSeen, again.Stages[0].Name)
}

func TestNilRecorderRecordsNothing(t *testing.T) {
	var rec *timeline.Recorder
	rec.Begin(ref("a"), "kubelet", timeline.StageSeen, "").End(nil)
	rec.Mark(ref("a"), "kubelet", timeline.StageSeen, "", nil)
	_, ok := rec.Record("a")
	require.False(t, ok)
	_, stop := rec.Watch()
	stop()
}

func TestChangesCoalesceAndStop(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 0)
	changed, stop := rec.Watch()
	for range 10 {
		rec.Mark(ref("a"), "kubelet", timeline.StageSeen, "", errors.New("x"))
		rec.Mark(ref("a"), "kubelet", timeline.StageSeen, "", nil)
	}
	<-changed
	select {
	case <-changed:
		t.Fatal("many changes must be one value")
	default:
	}
	stop()
	rec.Mark(ref("a"), "kubelet", timeline.StageReady, "", nil)
	select {
	case <-changed:
		t.Fatal("a stopped subscription got a value")
	default:
	}
}

// BenchmarkStage is a stage of a crash-looping container, whose record is full, and of Pods that start once.
func BenchmarkStage(b *testing.B) {
	for name, objects := range map[string]int{"one object": 1, "many objects": 10_000} {
		refs := make([]timeline.Ref, objects)
		for i := range refs {
			refs[i] = ref(fmt.Sprint(i))
		}
		b.Run(name, func(b *testing.B) {
			rec := timeline.New(clock.RealClock{}, 0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				rec.Begin(refs[i/32%objects], "kubelet", timeline.StageStart, "main").End(nil)
			}
		})
	}
}

func TestSubscribersGetEachChange(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 0)
	sub := rec.Subscribe(3)
	span := rec.Begin(ref("a"), "kubelet", timeline.StageVolume, "data")
	span.AddWait(250 * time.Millisecond)
	span.End(timeline.WithReason(errors.New("no such claim"), "ClaimMissing", "create the claim"))
	rec.Mark(ref("a"), "kubelet", timeline.StageSeen, "", nil)
	require.Equal(t, 1, sub.Dropped(), "a full buffer loses, and counts")

	<-sub.C()
	changes := sub.Drain()
	require.Len(t, changes, 3)
	require.False(t, changes[0].Stage.Done())
	ended := changes[2].Stage
	require.Equal(t, "no such claim", ended.Error)
	require.Equal(t, "create the claim", ended.Remedy)
	require.Equal(t, "ClaimMissing", ended.Reason)
	require.InDelta(t, 250, ended.WaitMs, 1e-9)

	sub.Stop()
	rec.Mark(ref("a"), "kubelet", timeline.StageReady, "", nil)
	require.Empty(t, sub.Drain())
	require.Empty(t, sub.C())
}

func TestAStageNamesItsCause(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 0)
	claim := timeline.Ref{Kind: "PersistentVolumeClaim", Name: "data", UID: "claim"}
	rec.Begin(ref("a"), "kubelet", timeline.StageVolume, "data").SetCause(claim)
	record, _ := rec.Record("a")
	require.Equal(t, &claim, record.Stages[0].Cause)
	rec.Mark(ref("a"), "api", timeline.StageAccepted, "", nil).SetCause(claim)
	require.Nil(t, rec.Mark(ref("a"), "api", timeline.StageAccepted, "", nil), "nothing new")
	record, _ = rec.Record("a")
	require.Equal(t, &claim, record.Stages[1].Cause)
}

func TestTheOutermostReasonAndRemedyCount(t *testing.T) {
	require.NoError(t, timeline.WithReason(nil, "Nothing", "nothing"))
	rec := timeline.New(clock.RealClock{}, 0)
	inner := timeline.WithReason(errors.New("refused"), "Refused", "ask again")
	rec.Mark(ref("a"), "kubelet", timeline.StageVolume, "v", timeline.WithReason(fmt.Errorf("mount: %w", inner), "FailedMount", ""))
	record, _ := rec.Record("a")
	require.Equal(t, "mount: refused", record.Stages[0].Error)
	require.Equal(t, "FailedMount", record.Stages[0].Reason)
	require.Equal(t, "ask again", record.Stages[0].Remedy)
}

func TestWorkFarBelowFindsItsStage(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(100, 0))
	rec := timeline.New(clock, 0)
	asked := clock.Now()
	clock.Step(time.Second)
	ctx := rec.BeginQueued(ref("a"), "kubelet", timeline.StageVolume, "data", asked).Context(t.Context())
	timeline.Current(ctx).AddWait(500 * time.Millisecond)
	call := timeline.Current(ctx).Begin("csi driver d", timeline.StageDriver, "NodePublishVolume v")
	call.End(nil)
	timeline.Current(t.Context()).Begin("owner", timeline.StageDriver, "").End(nil)

	record, _ := rec.Record("a")
	require.Len(t, record.Stages, 2)
	require.Equal(t, asked, record.Stages[0].Start, "the stage began when it was asked for")
	require.InDelta(t, 1500, record.Stages[0].WaitMs, 1e-9)
	require.Equal(t, timeline.StageDriver, record.Stages[1].Name)
}

func TestLatestListsAKindNewestFirst(t *testing.T) {
	rec := timeline.New(clock.RealClock{}, 3)
	rec.Mark(timeline.Ref{Kind: "PersistentVolumeClaim", Name: "c", UID: "c"}, "provision", timeline.StageBound, "", nil)
	for _, uid := range []string{"a", "b", "d"} {
		rec.Mark(ref(uid), "kubelet", timeline.StageSeen, "", nil)
	}
	uids := func(records []timeline.Record) (all []string) {
		for _, record := range records {
			all = append(all, string(record.Ref.UID))
		}
		return all
	}
	require.Equal(t, []string{"d", "b", "a"}, uids(rec.Latest("Pod", 10)))
	require.Equal(t, []string{"d"}, uids(rec.Latest("Pod", 1)))
	require.Empty(t, uids(rec.Latest("PersistentVolumeClaim", 1)), "it was the oldest")
	require.Empty(t, (*timeline.Recorder)(nil).Latest("Pod", 1))
}
