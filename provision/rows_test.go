package provision_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testfuncs"
)

// rows is every row of the behaviour catalogue for provisioning (P: behaviour, B: defects of others that must be absent,
// U: what users complained of), in a few words, and the tests that hold it, as DIRECTORY.Test.
var rows = []struct{ row, says, tests string }{
	{"P-1", "a bad option panics, or is New's error", ".TestOptionsAreChecked"},
	{"P-2", "no options after Run began", ".TestStopFinishesAndSavesWhatIsInFlight"},
	{"P-3", "which options exclude each other", ".TestOptionsAreChecked"},
	{"P-4", "the defaults", ".TestDefaultsAreThoseOfTheFirstVersion .TestSaveIsTriedFiveTimesTenSecondsApart"},
	{"P-5", "15 s doubling to 1000 s, or 15 s, or the caller's limiter", ".TestBackoffDoublesToItsLimit .TestFailureIsRetriedUntilGivenUp .TestFailuresAreForgotten"},
	{"P-6", "the version is a version", ".TestConstructorChecksItsArguments"},
	{"P-7", "informers of the caller are his", ".TestInformersOfTheCaller"},
	{"P-8", "identity, and who events come from", ".TestNamesOfTheProcess"},
	{"P-9", "the Lease is in the Pod's namespace", ".TestNamesOfTheProcess"},
	{"P-12", "only the leader works; the Lease's name", ".TestOnlyTheLeaderWorks .TestNamesOfTheProcess"},
	{"P-13", "a lost Lease ends Run", ".TestLosingTheLeaseEndsRun"},
	{"P-14", "stop finishes what is in flight", ".TestStopFinishesAndSavesWhatIsInFlight .TestTheLeaseIsHeldUntilCallsHaveEnded"},
	{"P-15", "a metrics page and registry of its own, and a port that is held", ".TestMetricsPage .TestMetricsPagesShareAPort"},
	{"P-16", "so many calls at once, one for a claim", ".TestSlowCallsHoldUpNobodyElse .TestNothingLeaks"},
	{"P-20", "a claim is known by its UID", ".TestClaimCreatedAgainUnderItsName"},
	{"P-21", "bound or unqualified: skipped", ".TestWhichClaimsAreServed .TestClaimTurnsAwayWhileInProgress"},
	{"P-22", "both annotations, and additional names", ".TestWhichClaimsAreServed"},
	{"P-23", "waits for the first consumer", ".TestWhichClaimsAreServed"},
	{"P-24", "annotation, then field", ".TestWhichClaimsAreServed .TestMetricsNameTheClassInUse"},
	{"P-25", "the volume's name; there already is done", ".TestClaimGetsItsVolume .TestWhatIsLeftAloneIsNotCounted"},
	{"P-26", "raw block refused", ".TestWhichClaimsAreServed"},
	{"P-27", "class missing or foreign", ".TestClassMayComeLater .TestWhichClaimsAreServed"},
	{"P-28", "the selected node, and when it is gone", ".TestWhichClaimsAreServed .TestReschedule .TestNodeGoesWhileInProgress"},
	{"P-29", "what is passed, as copies", ".TestClaimGetsItsVolume .TestOptionsAreCopies"},
	{"P-30", "a deleted claim is finished, not begun", ".TestStateDecidesWhetherADeletedClaimIsFinished .TestIntentOfAnEarlierProcess"},
	{"P-31", "a change is tried at once", ".TestChangesEndTheBackoff"},
	{"P-35", "event: provisioning", ".TestClaimGetsItsVolume"},
	{"P-36", "the richest method is called", ".TestNoErrorIsSuccess .TestContextEndsWithTheController"},
	{"P-37", "a plain error is final", ".TestFailureIsRetriedUntilGivenUp"},
	{"P-38", "ignored, wrapped or not", ".TestIgnoredClaimIsLeftAlone"},
	{"P-39", "event: failed", ".TestFailureIsRetriedUntilGivenUp"},
	{"P-40", "finished and deleted: no further call", ".TestStateDecidesWhetherADeletedClaimIsFinished"},
	{"P-41", "background goes on after the deletion", ".TestStateDecidesWhetherADeletedClaimIsFinished"},
	{"P-42", "no change leaves it as it was", ".TestStateDecidesWhetherADeletedClaimIsFinished"},
	{"P-43", "no error is success", ".TestNoErrorIsSuccess"},
	{"P-44", "reschedule", ".TestReschedule"},
	{"P-45", "what a code leaves behind, how slowly it is tried again, and until what", "csi.TestWhatACodeLeavesBehind csi.TestRefusedArgumentsAreSentAgainSlowly .TestInfeasibleRequestIsRepeatedSlowly .TestInfeasibleRequestIsMadeAgainWhenItChanged"},
	{"P-46", "given up, and what restarts it", ".TestInfeasibleRequestIsGivenUp .TestFailureIsRetriedUntilGivenUp .TestBackoffDoublesToItsLimit"},
	{"P-47", "success forgets", ".TestFailuresAreForgotten"},
	{"P-48", "neither volume nor error is an error", ".TestNeitherVolumeNorErrorIsAnError"},
	{"P-49", "a claim that turns away is still resolved", ".TestClaimTurnsAwayWhileInProgress .TestClaimBoundElsewhereWhileInProgress"},
	{"P-52", "what is saved", ".TestClaimGetsItsVolume"},
	{"P-55", "five tries, ten seconds apart", ".TestSaveIsTriedFiveTimesTenSecondsApart .TestSavedVolumeIsNotDeletedBecauseAnswersWereLost .TestStoresWorkAlone"},
	{"P-56", "then deleted and made again", ".TestUnsavedVolumeIsDeletedAndMadeAgain .TestVolumeThatCannotBeCleanedIsNotForgotten"},
	{"P-57", "ignored in the cleanup: nothing to clean", ".TestIgnoredInTheCleanup"},
	{"P-58", "with a limiter: saved for ever, never deleted", ".TestSaveWithLimiterNeverDeletes .TestStoresWorkAlone"},
	{"P-59", "and that is said", ".TestSaveWithLimiterNeverDeletes"},
	{"P-60", "refusals too", ".TestSaveWithLimiterNeverDeletes"},
	{"P-61", "counted when saved", ".TestSaveWithLimiterNeverDeletes .TestMetricsCountOutcomes"},
	{"P-62", "death loses nothing", ".TestKilledAtEveryStep .TestNothingLeaks .TestRealKill"},
	{"P-63", "stores work alone", ".TestStoresWorkAlone"},
	{"P-70", "which volumes are deleted", ".TestWhichVolumesAreDeleted"},
	{"P-71", "read before the call; an error is not absence", ".TestDeletionIsCountedWhenItIsDone .TestVolumeThatWentIsNotCounted"},
	{"P-72", "storage, object, finalizer", ".TestWhichVolumesAreDeleted"},
	{"P-73", "ignored: it stays", ".TestIgnoredDeleteLeavesTheVolume"},
	{"P-74", "event, retries, the end of them", ".TestFailedDeleteIsReportedAndRetried .TestWokenDeletionDoesNotWait csi.TestRealDeletionFollowsTheDetachment"},
	{"P-75", "the object's deletion is repeated", ".TestDeletionIsCountedWhenItIsDone"},
	{"P-76", "the storage is deleted once", ".TestWhichVolumesAreDeleted .TestDeletionIsCountedWhenItIsDone"},
	{"P-77", "one worker for a volume", ".TestNothingLeaks"},
	{"P-78", "a volume deleted before its claim", ".TestVolumeDeletedBeforeItsClaim .TestVolumeFinalizerFollowsThePolicy"},
	{"P-79", "Retain stays", ".TestWhichVolumesAreDeleted"},
	{"P-85", "names and labels", ".TestMetricsCountOutcomes"},
	{"P-86", "what is left alone is not counted", ".TestWhatIsLeftAloneIsNotCounted .TestIgnoredClaimIsLeftAlone"},
	{"P-87", "nor deletions that were none", ".TestIgnoredDeleteLeavesTheVolume .TestVolumeThatWentIsNotCounted .TestDeletionIsCountedWhenItIsDone"},
	{"P-88", "the class in use", ".TestMetricsNameTheClassInUse"},

	{"B-40", "deletions do not delay claims", ".TestDeletionsDoNotDelayClaims"},
	{"B-41", "few writes, and reads from caches", ".TestOnePVWriteAndTwoPatchesPerClaim .TestRealManyClaimsAtOnce"},
	{"B-42", "an error is not absence", ".TestSavedVolumeIsNotDeletedBecauseAnswersWereLost"},
	{"B-43", "informers that run already", ".TestInformersOfTheCaller"},
	{"B-44", "the reference cannot fail", ".TestClaimGetsItsVolume"},
	{"B-45", "waiting holds no worker", ".TestSlowCallsHoldUpNobodyElse .TestSaveIsTriedFiveTimesTenSecondsApart"},
	{"B-46", "a node that is gone", ".TestNodeGoesWhileInProgress csi.TestAVolumeOfANodeThatIsGoneIsFound"},
	{"B-47", "counts of failures end", ".TestFailuresAreForgotten"},
	{"B-48", "a volume deleted first is finished", ".TestVolumeDeletedBeforeItsClaim"},
	{"B-49", "saving is not provisioning", ".TestSaveWithLimiterNeverDeletes"},

	{"U-10", "throughput", ".TestWhatNobodyWaitsForGivesWay .TestVolumesDoNotQueueUpBehindIntents .TestOnePVWriteAndTwoPatchesPerClaim .TestTheClientsLimitIsLifted .TestRealManyClaimsAtOnce"},
	{"U-11", "leaks", ".TestNothingLeaks .TestKilledAtEveryStep .TestRealKill .TestClaimBoundElsewhereWhileInProgress .TestClaimIsTakenAwayByHandBeforeItsClassIsThere csi.TestRealClaimsByAMoodyDriver"},
	{"U-12", "claims that hang or do not stop", ".TestInfeasibleRequestIsMadeAgainWhenItChanged .TestChangesEndTheBackoff .TestFailureIsRetriedUntilGivenUp"},
	{"U-13", "deleted twice", ".TestWhichVolumesAreDeleted .TestDeletionIsCountedWhenItIsDone"},
	{"U-14", "Retain does not hang", ".TestVolumeFinalizerFollowsThePolicy"},
	{"U-15", "two leaders, or none", ".TestOnlyTheLeaderWorks .TestTheLeaseIsHeldUntilCallsHaveEnded .TestTheLeaseIsNotThrottled"},
}

// catalogue is which numbers the catalogue gives to rows of provisioning, from and to.
var catalogue = []struct {
	family      string
	first, last int
}{
	{"P", 1, 9}, {"P", 12, 16}, {"P", 20, 31}, {"P", 35, 49}, {"P", 52, 52}, {"P", 55, 63}, {"P", 70, 79}, {"P", 85, 88},
	{"B", 40, 49}, {"U", 10, 15},
}

// TestEveryRowHasItsTests keeps the table true: each row once, none missing, and each test there.
func TestEveryRowHasItsTests(t *testing.T) {
	known := make(map[string]bool)
	for dir, name := range map[string]string{".": "", "csi": "csi"} {
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
	for _, rows := range catalogue {
		for n := rows.first; n <= rows.last; n++ {
			require.True(t, seen[fmt.Sprint(rows.family, "-", n)], "row %s-%d is missing", rows.family, n)
		}
	}
}
