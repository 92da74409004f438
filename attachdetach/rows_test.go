package attachdetach_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testfuncs"
)

// rows is every row of the behaviour catalogue for attach and detach (R: behaviour, B: defects of others that must be
// absent, U: what users complained of), in a few words, and the tests that hold it, as DIRECTORY.Test.
var rows = []struct{ row, says, tests string }{
	{"R-1", "a pass at once, the next a period after it; Run blocks", "reconciler.TestPassesFindWhatNoEventTold reconciler.TestRunWithTheDocumentedConstructor"},
	{"R-2", "stop ends the pass, not what has begun", "reconciler.TestRunWithTheDocumentedConstructor"},
	{"R-3", "detach before attach, then the lists", "reconciler.TestDetachComesBeforeAttach"},
	{"R-4", "nothing to do calls nobody", "reconciler.TestPassesFindWhatNoEventTold"},
	{"R-5", "confirmed attachments are verified, not at time 0", "reconciler.TestVerification"},
	{"R-6", "less than a second, or disabled: never", "reconciler.TestVerificationCanBeTurnedOff"},
	{"R-7", "6 minutes for an unmount", ".TestNodeFailures"},
	{"R-8", "one decides, operations run beside it", "reconciler.TestChurn"},
	{"R-10", "a pending operation does not start the timer", "reconciler.TestPendingOperationDoesNotStartTheTimer"},
	{"R-11", "backoff of a detach leaves the status alone", "reconciler.TestFailedDetach"},
	{"R-12", "a pair that vanished is skipped", "reconciler.TestPairThatVanishesDuringTheWrite"},
	{"R-13", "the timer is stamped once", "reconciler.TestPodThatComesBackStartsTheTimerAfresh"},
	{"R-14", "a Pod that comes back clears the stamp", "reconciler.TestPodThatComesBackStartsTheTimerAfresh"},
	{"R-15", "mounted and not expired: no detach", "reconciler.TestMountedVolumeIsDetachedOnlyWhen"},
	{"R-16", "expired: forced, unsafe, counted", "reconciler.TestMountedVolumeIsDetachedOnlyWhen .TestNodeFailures"},
	{"R-17", "never forced on a ready node", "reconciler.TestMountedVolumeIsDetachedOnlyWhen"},
	{"R-18", "the out-of-service taint forces at once", "reconciler.TestMountedVolumeIsDetachedOnlyWhen .TestNodeFailures"},
	{"R-19", "forcing by time can be turned off", "reconciler.TestMountedVolumeIsDetachedOnlyWhen"},
	{"R-20", "off the list before the detach", "reconciler.TestListIsWrittenBeforeTheDetach"},
	{"R-21", "a failed write puts it back", "reconciler.TestListIsWrittenBeforeTheDetach"},
	{"R-22", "only the node in question is written", "reconciler.TestListIsWrittenBeforeTheDetach"},
	{"R-23", "off the list already is no obstacle", "reconciler.TestFailedDetach"},
	{"R-24", "a detach that cannot start puts it back", "reconciler.TestVolumesKnownByName"},
	{"R-25", "the node is read live before the detach", "operationexecutor.TestDetach"},
	{"R-26", "detached: off the list, and no event", "operationexecutor.TestDetach reconciler.TestDetachComesBeforeAttach"},
	{"R-27", "a failed detach is uncertain and stays off", "operationexecutor.TestDetach reconciler.TestFailedDetach"},
	{"R-28", "by name alone, split at two slashes", "operationexecutor.TestSplitUniqueVolumeName reconciler.TestVolumesKnownByName"},
	{"R-29", "a shared volume leaves one node only", ".TestSharedVolumeIsOnBothNodes"},
	{"R-30", "attached and wanted clears the stamp", "reconciler.TestPodThatComesBackStartsTheTimerAfresh"},
	{"R-31", "pending is asked before the state", "reconciler.TestOperationsSideBySide"},
	{"R-32", "pending: skip", "reconciler.TestOperationsSideBySide"},
	{"R-33", "uncertain or detached: attach", "reconciler.TestDecideAttach .TestRestart"},
	{"R-34", "which volumes may be on several nodes", "operationexecutor.TestIsMultiAttachAllowed"},
	{"R-35", "elsewhere: not attached, told once", "reconciler.TestMultiAttach"},
	{"R-36", "the end there attaches here at once", "reconciler.TestMultiAttach"},
	{"R-37", "ReadWriteOncePod is exclusive, no more", "operationexecutor.TestIsMultiAttachAllowed"},
	{"R-38", "attached: confirmed, listed, told", "operationexecutor.TestAttach .TestVolumeFollowsItsPod"},
	{"R-39", "failed: uncertain, told, retried", "operationexecutor.TestAttach .TestAttachErrorIsToldAndRetriedWhenTheAttacherSucceeds"},
	{"R-40", "a volume that hangs elsewhere is released there", "reconciler.TestDanglingAttachment operationexecutor.TestAttach"},
	{"R-41", "no plugin, or a panic, is a failure", "operationexecutor.TestAttach"},
	{"R-45", "text: attached elsewhere", "reconciler.TestMultiAttach"},
	{"R-46", "text: users, foreign ones unnamed", "reconciler.TestMultiAttach"},
	{"R-47", "texts of success and failure", "operationexecutor.TestAttach"},
	{"R-48", "texts are no formats", "operationexecutor.TestAttach"},
	{"R-49", "events come from attachdetach-controller", ".TestEventsCarryTheControllersName"},
	{"R-50", "one operation on an exclusive volume", "reconciler.TestOperationsSideBySide"},
	{"R-51", "one a node on a shared one", "reconciler.TestOperationsSideBySide"},
	{"R-52", "which keys conflict", "keyed.TestConflicts"},
	{"R-53", "busy and backoff are told apart", "keyed.TestConflicts operationexecutor.TestAttach"},
	{"R-54", "500 ms doubling; another kind resets", "keyed.TestBackoffDoublesToTheLimitAndEndsWithSuccess keyed.TestAnotherKindDoesNotWaitForTheFirstKindsBackoff"},
	{"R-55", "a panic is a failure", "keyed.TestPanicIsAFailure"},
	{"R-60", "names come from specs", "cache.TestActual"},
	{"R-61", "new is mounted until said otherwise", "cache.TestActual .TestFailedAttachOfAPodThatGoes"},
	{"R-62", "confirmed and uncertain, and the list", "cache.TestActual"},
	{"R-63", "which queries have the uncertain", "cache.TestActual"},
	{"R-64", "mounted comes from volumesInUse as a whole", "cache.TestActual"},
	{"R-65", "gone: off the list", "cache.TestActual"},
	{"R-66", "no stamp on what is gone", "cache.TestActual"},
	{"R-67", "flags are taken with the lists; an empty list counts", "cache.TestActual statusupdater.TestWritesFlaggedNodesOnly"},
	{"R-68", "what is unknown cannot be listed", "cache.TestActual"},
	{"R-69", "nor flagged", "cache.TestActual"},
	{"R-70", "only annotated nodes", ".TestWhatIsNotOurs"},
	{"R-71", "nodes with volumes stay", "cache.TestDesired"},
	{"R-72", "Pods come and go", "cache.TestDesired"},
	{"R-73", "ended Pods give up, unless the node keeps", ".TestPodThatEndsReleasesItsVolume .TestPodThatIsBeingDeletedKeepsItsVolumeWhileItRuns .TestNodeThatKeepsTerminatedPodsVolumes"},
	{"R-74", "a deleted Pod that runs keeps its volume", ".TestPodThatIsBeingDeletedKeepsItsVolumeWhileItRuns"},
	{"R-75", "claim and volume must name each other", ".TestClaimMustBeItsVolumes .TestClaimThatIsBoundLater"},
	{"R-76", "an ephemeral claim is its Pod's", ".TestEphemeralVolume"},
	{"R-77", "a claim's change finds its Pods", ".TestClaimThatIsBoundLater"},
	{"R-78", "Pods with another identity, volumes that need none", ".TestPodReplacedUnderItsName .TestDriverThatNeedsNoAttachment"},
	{"R-79", "reported goes with the wish", "cache.TestDesired"},
	{"R-80", "patch of the status, the whole list", "statusupdater.TestWritesFlaggedNodesOnly"},
	{"R-81", "a node that is gone is no failure", "statusupdater.TestFailures"},
	{"R-82", "other failures flag again, others go on", "statusupdater.TestFailures"},
	{"R-83", "no flag, no call", "statusupdater.TestWritesFlaggedNodesOnly"},
	{"R-90", "start: actual from statuses, then desired", ".TestRestart"},
	{"R-91", "what nobody wants goes by name", ".TestRestart reconciler.TestVolumesKnownByName"},
	{"R-92", "attachments that no list has are found", ".TestRestart"},
	{"R-93", "attachments of nothing are left alone", ".TestStartWithWhatCannotBeUnderstood"},
	{"R-94", "the timer starts anew", ".TestUnmountTimerStartsAnewWithTheController"},
	{"R-95", "errors at the start keep nothing back", ".TestStartWithWhatCannotBeUnderstood"},
	{"R-96", "death between list and detach loses nothing", ".TestRestart reconciler.TestChurn"},
	{"R-97", "nodes without volumes are known too", ".TestVolumeFollowsItsPod"},
	{"R-100", "the attachment's name", "csi.TestNames"},
	{"R-101", "made unless it is there", "csi.TestAttach"},
	{"R-102", "the answers to an attach", "csi.TestAttach csi.TestAttachThatCannotBe"},
	{"R-103", "gone is detached", "csi.TestDetach"},
	{"R-104", "what verification reads", "csi.TestLook csi.TestDriverWithoutAttachments"},
	{"R-105", "driver^handle", "csi.TestNames"},
	{"R-110", "gauges", "metrics.TestNamesAndLabels .TestVolumeFollowsItsPod"},
	{"R-111", "forced detaches by reason", "metrics.TestNamesAndLabels .TestNodeFailures"},
	{"R-112", "durations of calls", "metrics.TestOperations"},

	{"B-1", "no copy of everything: a change costs itself", "reconciler.BenchmarkReaction"},
	{"B-2", "pending is asked by key", "keyed.TestConflicts"},
	{"B-3", "old failures are forgotten", "keyed.TestOldFailuresAreForgotten"},
	{"B-4", "few writes for many detaches", "reconciler.TestDrainIsFewWrites"},
	{"B-5", "only flagged nodes, none for ever", "statusupdater.TestWritesFlaggedNodesOnly statusupdater.TestFailures"},
	{"B-6", "no race on flags", "reconciler.TestChurn"},
	{"B-7", "no live map handed out", "reconciler.TestChurn"},
	{"B-8", "device path and spec are a pair's", "cache.TestActual"},
	{"B-9", "uncertain keeps the spec", "cache.TestActual"},
	{"B-10", "unmounted is checked however long it took", "reconciler.TestDecideDetach"},
	{"B-11", "uncertain elsewhere is detached first", "reconciler.TestUncertainAttachmentIsDetachedFirst"},
	{"B-12", "no answer proves nothing", "operationexecutor.TestVerify csi.TestLook reconciler.TestVerification"},
	{"B-13", "an old verdict is void", "cache.TestVerdicts"},
	{"B-14", "no spec is not shareable", "operationexecutor.TestIsMultiAttachAllowed"},
	{"B-15", "all volumes of a Pod go with it", ".TestPodReplacedUnderItsName cache.TestDesired"},
	{"B-16", "a deleted node is let go", ".TestNodeFailures"},
	{"B-17", "a deleted node has nothing mounted after its lease", "reconciler.TestDeletedNodeHasNothingMountedAfterItsLease .TestNodeFailures"},
	{"B-18", "a stale copy does not hide a wrong status", "cache.TestCheckReport"},
	{"B-19", "the list is sorted", "statusupdater.TestWritesFlaggedNodesOnly"},
	{"B-20", "Pods deleted out of sight", ".TestPodReplacedUnderItsName"},
	{"B-21", "each Pod that waits is told", "reconciler.TestMultiAttach"},
	{"B-22", "handles may hold ^", "csi.TestNames"},
	{"B-23", "the name's hash as it is", "csi.TestNames"},
	{"B-24", "the answer is heard when it comes", "csi.TestAttach"},
	{"B-25", "an attachment taken away is an error", "csi.TestAttachThatCannotBe"},
	{"B-26", "metrics count, they do not list", "metrics.TestNamesAndLabels cache.TestDesired"},
	{"B-27", "bounded concurrency", "operationexecutor.TestAttachesAndDetachesHaveTheirOwnConcurrency keyed.TestDoSerialisesAndLimitBounds"},

	{"U-1", "the time for unmounting is the caller's, and each node's", "reconciler.TestMountedVolumeIsDetachedOnlyWhen .TestNodeFailures"},
	{"U-2", "no force on live nodes; force is told", "reconciler.TestMountedVolumeIsDetachedOnlyWhen reconciler.TestForcedDetachIsTold"},
	{"U-3", "a dead kubelet: the taint", ".TestNodeFailures"},
	{"U-4", "a deleted node", ".TestNodeFailures"},
	{"U-5", "who holds the volume; no alarm over a usual move", "reconciler.TestHolderIsTold reconciler.TestMoveRaisesNoAlarm"},
	{"U-6", "restarts lose and leak nothing", ".TestRestart reconciler.TestChurn"},
	{"U-7", "statuses become right", "cache.TestCheckReport statusupdater.TestFailures"},
	{"U-8", "races", "reconciler.TestChurn reconciler.TestPodThatComesBackDuringTheWrite"},
	{"U-9", "speed does not depend on how much there is", "reconciler.BenchmarkReaction reconciler.TestDrainIsFewWrites"},
}

// TestEveryRowHasItsTests keeps the table true: each row once, and each test there.
func TestEveryRowHasItsTests(t *testing.T) {
	known := make(map[string]bool)
	for dir, name := range map[string]string{
		".": "", "reconciler": "reconciler", "cache": "cache", "statusupdater": "statusupdater", "csi": "csi",
		"metrics": "metrics", "../volume/operationexecutor": "operationexecutor", "../internal/keyed": "keyed",
	} {
		tests, err := testfuncs.List(dir, "Test", "Benchmark")
		require.NoError(t, err)
		for test := range tests {
			known[name+"."+test] = true
		}
	}
	seen := make(map[string]bool)
	for _, r := range rows {
		require.False(t, seen[r.row], "row %s stands twice", r.row)
		seen[r.row] = true
		require.NotEmpty(t, r.says, r.row)
		require.NotEmpty(t, strings.Fields(r.tests), r.row)
		for _, test := range strings.Fields(r.tests) {
			require.True(t, known[test], "row %s names %s, which is not there", r.row, test)
		}
	}
}
