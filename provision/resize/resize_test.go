package resize_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/timeline"
)

const preResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

func asked(claim *corev1.PersistentVolumeClaim) string {
	size := claim.Status.AllocatedResources[corev1.ResourceStorage]
	return size.String()
}

func stage(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

func always(code codes.Code) func(string, int64) (error, bool) {
	return func(string, int64) (error, bool) { return status.Error(code, "says the driver"), false }
}

// done checks that the claim has that size and nothing is left of its expansion.
func done(t *testing.T, api *fakeAPI, name, size string) {
	t.Helper()
	claim, pv := api.claim(name), api.volume(name)
	require.Equal(t, size, claim.Status.Capacity.Storage().String())
	require.Equal(t, size, pv.Spec.Capacity.Storage().String())
	require.Empty(t, stage(claim))
	require.Empty(t, claim.Status.Conditions)
	require.NotContains(t, pv.Annotations, preResize)
}

func TestNodeExpansion(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, stages *timeline.Recorder) {
		api.request("c", gib(3))
		synctest.Wait()
		claim, pv := api.claim("c"), api.volume("c")
		require.Equal(t, []int64{3}, api.driver.calls())
		require.Equal(t, "3Gi", pv.Spec.Capacity.Storage().String())
		require.Equal(t, "1Gi", pv.Annotations[preResize])
		require.Equal(t, corev1.PersistentVolumeClaimNodeResizePending, stage(claim))
		require.Equal(t, "3Gi", asked(claim))
		require.Equal(t, "1Gi", claim.Status.Capacity.Storage().String())
		require.Contains(t, conditions(claim), corev1.PersistentVolumeClaimFileSystemResizePending)
		require.Contains(t, conditions(claim), corev1.PersistentVolumeClaimResizing)
		require.Contains(t, <-events, "Normal Resizing ")
		require.Contains(t, <-events, "Normal FileSystemResizeRequired Require file system resize of volume on node")

		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "3Gi")
		require.Equal(t, []int64{3}, api.driver.calls(), "once is enough")
		record, _ := stages.Record("uid-c")
		require.Len(t, record.Stages, 1)
		require.Equal(t, "ExpandingVolume 3Gi", record.Stages[0].Name+" "+record.Stages[0].Subject)
	})
}

func TestNoNodeExpansion(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, _ *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) { p.node, p.extra = false, 1<<30 })
		api.request("c", gib(2))
		synctest.Wait()
		done(t, api, "c", "3Gi")
		require.Equal(t, "2Gi", asked(api.claim("c")))
		require.Contains(t, <-events, "Normal Resizing ")
		require.Contains(t, <-events, "Normal VolumeResizeSuccessful Resize volume succeeded")
	})
}

// TestNodesAreNotIdleAfterARetry expands a volume that needed no step on the nodes before and needs one now, by a call that is repeated.
func TestNodesAreNotIdleAfterARetry(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.updateClaim("c", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			claim.Annotations = map[string]string{expansion.AnnotationNodeExpansionNotRequired: "true"}
		})
		api.driver.set(func(p *fakeDriver) { p.node, p.fail = true, always(codes.Unavailable) })
		api.request("c", gib(2))
		synctest.Wait()
		require.Equal(t, corev1.PersistentVolumeClaimControllerResizeInProgress, stage(api.claim("c")))
		api.driver.set(func(p *fakeDriver) { p.fail = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, corev1.PersistentVolumeClaimNodeResizePending, stage(api.claim("c")))
		require.NotContains(t, api.claim("c").Annotations, expansion.AnnotationNodeExpansionNotRequired)
	})
}

// TestSharedVolumeAnnotatesNodesIdle is about an annotation that each node looks for, once the claim has its
// new size.
func TestSharedVolumeAnnotatesNodesIdle(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, _ *timeline.Recorder) {
		const idle = "volume.kubernetes.io/node-expansion-not-required"
		api.updateClaim("c", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		})
		api.driver.set(func(p *fakeDriver) { p.node = false })
		api.request("c", gib(2))
		synctest.Wait()
		done(t, api, "c", "2Gi")
		require.Equal(t, "true", api.claim("c").Annotations[idle])

		api.driver.set(func(p *fakeDriver) { p.node = true })
		api.request("c", gib(3))
		synctest.Wait()
		require.NotContains(t, api.claim("c").Annotations, idle)
		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "3Gi")

		api.driver.set(func(p *fakeDriver) { p.node = false })
		api.mu.Lock()
		api.forbid = true
		api.mu.Unlock()
		api.request("c", gib(4))
		synctest.Wait()
		done(t, api, "c", "4Gi")
		require.NotContains(t, api.claim("c").Annotations, idle, "a resizer that may not say so does its work nevertheless")
		for range 6 {
			require.Contains(t, <-events, "Normal ")
		}
	})
}

func TestNodeOnlyDriverIsNotCalled(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) { p.capabilities = resize.Capabilities{Node: true} })
		api.request("c", gib(2))
		synctest.Wait()
		require.Empty(t, api.driver.calls())
		require.Equal(t, corev1.PersistentVolumeClaimNodeResizePending, stage(api.claim("c")))
		require.Equal(t, "2Gi", api.volume("c").Spec.Capacity.Storage().String())
	})
}

func TestUnsupportedDriverLeavesTheClaimUnchanged(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, stages *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) { p.capabilities = resize.Capabilities{} })
		api.request("c", gib(2))
		synctest.Wait()
		require.Contains(t, <-events, `Warning VolumeResizeFailed resize volume "pv-c": driver "disk.example.com" does not support volume expansion`)
		require.Empty(t, api.claim("c").Status.AllocatedResources)
		require.Empty(t, api.claim("c").Status.Conditions)
		record, _ := stages.Record("uid-c")
		require.Equal(t, "Unsupported", record.Stages[0].Reason)
		time.Sleep(4 * time.Minute) // the bubble's time
		require.Empty(t, events)
	})
}

func TestInfeasibleSizeWaitsForASmallerRequest(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, _ *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) {
			p.fail = func(_ string, size int64) (error, bool) {
				if size > 4<<30 {
					return status.Error(codes.OutOfRange, "too large"), false
				}
				return nil, false
			}
		})
		api.request("c", gib(9))
		synctest.Wait()
		claim := api.claim("c")
		require.Equal(t, corev1.PersistentVolumeClaimControllerResizeInfeasible, stage(claim))
		require.Contains(t, conditions(claim)[corev1.PersistentVolumeClaimControllerResizeError], "too large")
		require.Contains(t, <-events, "Resizing")
		require.Contains(t, <-events, "Warning VolumeResizeFailed")
		time.Sleep(4 * time.Minute) // the bubble's time
		synctest.Wait()
		require.Equal(t, []int64{9}, api.driver.calls())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, []int64{9, 9}, api.driver.calls(), "the cause may be something that is not watched")

		api.request("c", gib(4))
		synctest.Wait()
		require.Equal(t, []int64{9, 9, 4}, api.driver.calls(), "at once")
		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "4Gi")
		require.Equal(t, "4Gi", asked(api.claim("c")))
	})
}

func TestFinalFailureIsRetriedAndMayBeLowered(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.ResourceExhausted, codes.Unknown} {
		run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
			api.driver.set(func(p *fakeDriver) { p.fail = always(code) })
			api.request("c", gib(9))
			synctest.Wait()
			claim := api.claim("c")
			require.Equal(t, corev1.PersistentVolumeClaimControllerResizeInProgress, stage(claim))
			require.Contains(t, conditions(claim)[corev1.PersistentVolumeClaimControllerResizeError], "says the driver")
			require.Equal(t, []int64{9}, api.driver.calls(), "our own words in the claim do not end the pause")
			time.Sleep(3500 * time.Millisecond) // the bubble's time: 1 s and 2 s
			synctest.Wait()
			require.Equal(t, []int64{9, 9, 9}, api.driver.calls())
			api.driver.set(func(p *fakeDriver) { p.fail = nil })
			api.request("c", gib(2))
			synctest.Wait()
			api.expandOnNode("c")
			synctest.Wait()
			done(t, api, "c", "2Gi")
			require.Equal(t, []int64{9, 9, 9, 2}, api.driver.calls())
		})
	}
}

func TestUnknownOutcomeIsFinishedFirst(t *testing.T) {
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Aborted, codes.Unavailable, codes.Canceled} {
		run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
			api.driver.set(func(p *fakeDriver) { p.fail = always(code) })
			api.request("c", gib(9))
			synctest.Wait()
			require.NotContains(t, conditions(api.claim("c")), corev1.PersistentVolumeClaimControllerResizeError)
			api.request("c", gib(2))
			synctest.Wait()
			require.Equal(t, []int64{9, 9}, api.driver.calls(), "it may be growing to 9Gi")
			api.driver.set(func(p *fakeDriver) { p.fail = always(codes.Internal) })
			time.Sleep(time.Second) // the bubble's time
			synctest.Wait()
			api.driver.set(func(p *fakeDriver) { p.fail = nil })
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.Equal(t, []int64{9, 9, 9, 2}, api.driver.calls(), "a final answer sets it free")
			api.expandOnNode("c")
			synctest.Wait()
			done(t, api, "c", "2Gi")
		})
	}
}

func TestAVolumeInUseIsTriedAgainWhenItIsDetached(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, stages *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) { p.fail = always(codes.FailedPrecondition) })
		api.request("c", gib(2))
		synctest.Wait()
		record, _ := stages.Record("uid-c")
		require.Equal(t, "InUse", record.Stages[0].Reason)
		api.driver.set(func(p *fakeDriver) { p.fail = nil })
		api.driver.notify("pv-other")
		api.driver.notify("pv-c")
		synctest.Wait()
		require.Equal(t, []int64{2, 2}, api.driver.calls(), "no time has passed")
		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "2Gi")
	})
}

func TestLargerRequestDuringNodeExpansion(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.request("c", gib(2))
		synctest.Wait()
		api.request("c", gib(5))
		synctest.Wait()
		require.Equal(t, []int64{2, 5}, api.driver.calls())
		require.Equal(t, "1Gi", api.volume("c").Annotations[preResize], "the file system has not grown yet")
		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "5Gi")
	})
}

// nodeRejects does what the kubelet does if the driver's node service rejects the size.
func nodeRejects(api *fakeAPI) {
	api.updateClaim("c", func(claim *corev1.PersistentVolumeClaim) {
		claim.Status.AllocatedResourceStatuses["storage"] = corev1.PersistentVolumeClaimNodeResizeInfeasible
	})
	synctest.Wait()
}

func TestInfeasibleNodeExpansionIsRetriedSlowly(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.request("c", gib(5))
		synctest.Wait()
		for tries := 1; tries <= 3; tries++ {
			nodeRejects(api)
			time.Sleep(4 * time.Minute) // the bubble's time
			synctest.Wait()
			require.Len(t, api.driver.calls(), tries)
			require.Equal(t, corev1.PersistentVolumeClaimNodeResizeInfeasible, stage(api.claim("c")))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			require.Len(t, api.driver.calls(), tries+1)
			require.Equal(t, corev1.PersistentVolumeClaimNodeResizePending, stage(api.claim("c")), "the node may try again")
		}
		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "5Gi")
		require.Equal(t, []int64{5, 5, 5, 5}, api.driver.calls())
	})
}

func TestAnotherRequestAfterAnInfeasibleNodeExpansion(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.request("c", gib(5))
		synctest.Wait()
		nodeRejects(api)
		api.request("c", gib(4))
		synctest.Wait()
		claim := api.claim("c")
		require.Equal(t, []int64{5, 4}, api.driver.calls())
		require.Equal(t, corev1.PersistentVolumeClaimNodeResizePending, stage(claim))
		require.Equal(t, "5Gi", api.volume("c").Spec.Capacity.Storage().String(), "nothing shrinks")
		api.expandOnNode("c")
		synctest.Wait()
		done(t, api, "c", "5Gi")
	})
}

func TestDriverThatReturnsTooSmallASize(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, _ *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) { p.extra = -1 << 30 })
		api.request("c", gib(3))
		synctest.Wait()
		require.Contains(t, <-events, "Resizing")
		require.Contains(t, <-events, "instead of")
		require.Equal(t, "1Gi", api.volume("c").Spec.Capacity.Storage().String())
		require.Contains(t, conditions(api.claim("c")), corev1.PersistentVolumeClaimControllerResizeError)
	})
}

func TestForeignClaimsAreIgnored(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
			"foreign": func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" },
			"taken":   func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "another" },
			"no-csi":  func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) { pv.Spec.CSI = nil },
			"unbound": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				c.Status.Phase = corev1.ClaimPending
			},
			"lost": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Spec.VolumeName = "gone" },
			"deleting": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
				c.DeletionTimestamp = &metav1.Time{}
			},
		} {
			api.addClaim(name, change)
			api.request(name, gib(2))
		}
		synctest.Wait()
		require.Empty(t, api.driver.calls())
		require.Zero(t, api.patches)
	})
}

// A PersistentVolume that is being deleted stays until its claim is gone, which may use it for long.
func TestVolumeWhoseDeletionWaitsForItsClaimIsExpanded(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.addClaim("leaving", func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp, pv.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes.io/pv-protection"}
		})
		api.request("leaving", gib(2))
		synctest.Wait()
		require.Equal(t, []int64{2}, api.driver.calls())
		api.expandOnNode("leaving")
		synctest.Wait()
		done(t, api, "leaving", "2Gi")
	})
}

func TestIdleClaimsCostNothing(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		api.updateClaim("c", func(claim *corev1.PersistentVolumeClaim) { claim.Labels = map[string]string{"a": "b"} })
		time.Sleep(24 * time.Hour) // the bubble's time
		synctest.Wait()
		require.Zero(t, api.patches)
		require.Empty(t, api.driver.calls())
	})
}

// What earlier versions, or a kubelet that only sets the capacity, left behind is removed.
func TestLeftoversAreCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(t)
		api.addClaim("c", func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			two := corev1.ResourceList{corev1.ResourceStorage: gib(2)}
			claim.Spec.Resources.Requests, claim.Status.Capacity, pv.Spec.Capacity = two, two, two
			claim.Status.AllocatedResources = two
			claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
				corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending}
			claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
			pv.Annotations = map[string]string{preResize: "1Gi"}
		})
		stop := api.start(&process{}, resize.Deps{})
		synctest.Wait()
		done(t, api, "c", "2Gi")
		require.Empty(t, api.driver.calls())
		stop()
	})
}

// What others write into the claim's status while the driver works must stay.
func TestForeignConditionsAreKept(t *testing.T) {
	run(t, func(api *fakeAPI, _ <-chan string, _ *timeline.Recorder) {
		foreign := corev1.PersistentVolumeClaimCondition{
			Type: corev1.PersistentVolumeClaimVolumeModifyingVolume, Status: corev1.ConditionTrue}
		api.driver.set(func(p *fakeDriver) {
			p.check = func(string, int64) {
				p.check = nil
				api.updateClaim("c", func(claim *corev1.PersistentVolumeClaim) {
					claim.Status.Conditions = append(claim.Status.Conditions, foreign)
				})
			}
		})
		api.request("c", gib(2))
		synctest.Wait()
		claim := api.claim("c")
		require.Equal(t, corev1.PersistentVolumeClaimNodeResizePending, stage(claim))
		require.Contains(t, claim.Status.Conditions, foreign)
	})
}

func TestSecretsThatCannotBeReadChangeNothing(t *testing.T) {
	run(t, func(api *fakeAPI, events <-chan string, _ *timeline.Recorder) {
		api.driver.set(func(p *fakeDriver) {
			p.fail = func(string, int64) (error, bool) { return errors.New("no such secret"), false }
		})
		api.request("c", gib(2))
		synctest.Wait()
		require.Contains(t, <-events, "Resizing")
		require.Contains(t, <-events, "no such secret")
		require.NotContains(t, conditions(api.claim("c")), corev1.PersistentVolumeClaimControllerResizeError)
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	_, err := resize.New(resize.Deps{Driver: &driverConn{}}, resize.Config{DriverName: driverName})
	require.ErrorContains(t, err, "Deps.Client")
	_, err = resize.New(resize.Deps{Deps: claimwork.Deps{Client: fake.NewClientset()}, Driver: &driverConn{}}, resize.Config{})
	require.ErrorContains(t, err, "Config.DriverName")
}
