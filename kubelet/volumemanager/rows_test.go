package volumemanager_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testfuncs"
)

// rows is every row of the behaviour catalogue that is about volumes (VOL: volumes, PLG: drivers' registration, poll: where
// others poll, input: what the world may throw at us), in a few words, the tests that hold it, as package.Test, and what
// of it is not there.
var rows = []struct{ row, says, tests, lacks string }{
	{"VOL-1", "only what containers use is set up; all are awaited; what is missing is told",
		"volumemanager.TestAllKindsOfVolumes volumemanager.TestSlowMountNamesWhatIsMissing podworker.TestVolumesImageAndSandboxAtTheSameTime", ""},
	{"VOL-2", "a failure is told and tried again, 0.5 s doubling; one operation a volume",
		"volumemanager.TestFailureIsTriedAgainAfterThePause keyed.TestBackoffDoublesToTheLimitAndEndsWithSuccess keyed.TestDoSerialisesAndLimitBounds", ""},
	{"VOL-3", "emptyDir on disk: 0777, lasts as long as the Pod",
		"emptydir.TestModeAndGroup emptydir.TestContract volumemanager.TestNewProcessTakesOverWhatIsMounted", ""},
	{"VOL-4", "emptyDir in memory: the smallest bound is its size; a warning where it may reach a disk",
		"emptydir.TestSizeInMemoryIsTheSmallestBound volumemanager.TestMemoryThatMayReachADiskIsReported mounts.TestTmpfsMaySwap", ""},
	{"VOL-5", "sizeLimit on disk evicts; huge pages",
		"volumemanager.TestEmptyDirOverItsSizeLimitIsReported integration.TestSizesOfVolumes emptydir.TestHugePages",
		"no accounting by project quota, which is off upstream too"},
	{"VOL-6", "hostPath's types",
		"hostpath.TestTypes", ""},
	{"VOL-7", "files of objects: layout, modes, missing ones are waited for, in memory what may be secret",
		"projected.TestFiles atomicwriter.TestWriteMakesTheFilesTheContentOfTheDirectory projected.TestWhatMayBeSecretIsInMemory volumemanager.TestMountWaitsForItsObjectAndNotForTheClock", ""},
	{"VOL-8", "a change reaches the files at once, whole; unchanged and immutable ones are left alone",
		"volumemanager.TestMountedVolumesFollowTheirObjects atomicwriter.TestReadersSeeOneGeneration atomicwriter.TestUnchangedFilesAreNotWritten objects.TestImmutableObjectIsNotWatched", ""},
	{"VOL-9", "the Pod's fields and resources as files",
		"projected.TestDownwardFields projected.TestRefreshFollowsObjectsAndKeepsOldFilesOnFailure", ""},
	{"VOL-10", "tokens: bound to the Pod, kept, renewed at 80 %",
		"token.TestTokenIsBoundToItsPodAndKept token.TestRenewalAtFourFifthsOfLifeOrADay token.TestOldTokenServesUntilItExpires token.TestForgottenTokenIsNotRenewed projected.TestTokenIsForItsReaderOnly", ""},
	{"VOL-11", "trust bundles, Pod certificates: refused by name",
		"volumemanager.TestUnsupportedVolumesAreNamed",
		"the sources themselves, which are off upstream"},
	{"VOL-12", "a claim must be bound, its volume's, not going, of the right mode; an ephemeral one the Pod's",
		"volumemanager.TestClaims volumemanager.TestClaimThatMayNotBeReadYet volumemanager.TestGenericEphemeralVolumeIsThePodsOwnClaim volumemanager.TestBlockVolume", ""},
	{"VOL-13", "in use is written, then attached is awaited; in use until unstaged",
		"volumemanager.TestDeviceIsUsedOnlyAfterTheHandshake node.TestVolumesInUseAreAcknowledged", ""},
	{"VOL-14", "stage once, publish for each Pod, with all that the driver must know",
		"csi.TestRequestsCarryWhatTheDriverNeeds csi.TestAttachmentsAreChecked volumemanager.TestDeviceIsStagedOnceForAllItsPods", ""},
	{"VOL-15", "final errors leave nothing, others leave it uncertain",
		"csi.TestOutcomesOfFailures volumemanager.TestErrorsOfDrivers volumemanager.TestDevicesSurviveFaultsAndRestarts integration.TestVolumesSurviveWhateverDies", ""},
	{"VOL-16", "unpublish for each Pod, unstage after the last",
		"volumemanager.TestDeviceIsStagedOnceForAllItsPods mounts.TestRemoveTreeStopsAtMounts integration.TestDisks", ""},
	{"VOL-17", "inline volumes: allowed by the CSIDriver, not staged, told of the Pod",
		"volumemanager.TestInlineVolumeIsPublishedAgainAndAgain csi.TestRequestsCarryWhatTheDriverNeeds csi.TestSuite", ""},
	{"VOL-18", "tokens for drivers, published again and again",
		"csi.TestRequestsCarryWhatTheDriverNeeds volumemanager.TestInlineVolumeIsPublishedAgainAndAgain", ""},
	{"VOL-19", "the Pod's group: by policy, only where needed, slowness told; or the driver's",
		"fsgroup.TestApply fsgroup.TestOnRootMismatch fsgroup.TestProgressIsReported csi.TestGroupOfThePod csi.TestRequestsCarryWhatTheDriverNeeds", ""},
	{"VOL-20", "read-only, recursively; propagation; the root is shared",
		"kuberuntime.TestMounts kuberuntime.TestMountsRefuses mounts.TestMakeSharedTouchesOnlyTheDirectory", ""},
	{"VOL-21", "subPath never leaves its volume",
		"subpath.TestPrepare subpath.TestNothingLeadsOutOfTheVolume subpath.TestSwappingAttackerGetsNothing volumemanager.TestSubPathsGoWithTheirVolumes kuberuntime.TestMounts", ""},
	{"VOL-22", "block devices: mapped, linked, held by a loop device until they are unmapped, given by their rights, FailedMapVolume",
		"volumemanager.TestBlockVolume volumemanager.TestLocalBlockVolume volumemanager.TestDeviceThatCannotBePinnedIsReportedAndRetried csi.TestBlockDeviceIsPinnedForEachPodUntilUnmap csi.TestDriverThatPublishesNoDevice csi.TestOutcomesOfFailures local.TestBlockDevice blockpin.TestNumberIsNotReusedWhileTheDeviceIsPinned blockpin.TestProcessThatDiedHalfway kubelet.TestBlockDevicesAreGivenByTheirRights integration.TestBlockDeviceIsHeldWhoeverDies integration.TestVolumesSurviveWhateverDies",
		""},
	{"VOL-23", "local volumes; nfs",
		"local.TestContract local.TestRefusals local.TestBlockDevice local.TestContractOfDisks nfs.TestContract nfs.TestFailures",
		"iscsi and fc are refused by name"},
	{"VOL-24", "image volumes are the runtime's",
		"volumemanager.TestAllKindsOfVolumes kuberuntime.TestMounts", ""},
	{"VOL-25", "ReadWriteOncePod is one Pod's",
		"volumemanager.TestVolumeForOnePodOnly", ""},
	{"VOL-26", "growth while in use",
		"volumemanager.TestVolumeIsExpandedWhileInUse volumemanager.TestVolumeIsExpandedAtOnceByAClaimEvent volumemanager.TestExpansionFollowsTheStagesOfTheClaim volumemanager.TestFailedExpansionIsReported integration.TestSizesOfVolumes integration.TestExpansion", ""},
	{"VOL-27", "a new process takes over what is there, and takes down what nobody wants",
		"volumemanager.TestNewProcessTakesOverWhatIsMounted volumemanager.TestNewProcessTakesDevicesOver volumemanager.TestStagedDeviceWithoutPodIsUnstagedAfterARestart volumemanager.TestKilledAtAnyMomentLeavesNothingThatIsNotCleanedUp csi.TestDataThatCannotBeRead", ""},
	{"VOL-28", "directories of Pods that are gone, and nothing else",
		"volumemanager.TestOrphansGoAndNothingElse mounts.TestRemoveTreeDoesNotFollowLinks mounts.TestRemoveTreeOfAnyDepthAndWidth", ""},
	{"VOL-29", "the driver's limit is in the CSINode, asked for again; a node without room refuses the Pod",
		"csinode.TestDriversAreWrittenDown csinode.TestLimitsAreAskedForAgain volumemanager.TestAttachLimitRefusesThePod volumemanager.TestFailedAttachIsRetried podworker.TestPodForWhoseVolumeThereIsNoRoomFails", ""},
	{"VOL-30", "SELinux",
		"",
		"no volume is mounted with a context, and the runtime is not asked to relabel; no machine with SELinux was at hand to prove it"},
	{"VOL-31", "statistics of volumes",
		"volumemanager.TestMetricsOfClaims volumemanager.TestVolumeIsExpandedWhileInUse stats.TestSummary", ""},
	{"PLG-1", "a driver's socket is seen, asked, told; failures are tried again",
		"pluginmanager.TestPluginsComeAndGo pluginmanager.TestPluginThatFailsIsTriedAgain pluginmanager.TestSocketThatNobodyServes pluginmanager.TestPluginOfAnotherTypeIsRefused", ""},
	{"PLG-2", "a driver is written into the CSINode and the Node",
		"csinode.TestDriversAreWrittenDown csinode.TestDriversThatCannotBe pluginmanager.TestPluginThatMovesToAnotherSocketStays", ""},
	{"PLG-3", "a socket that goes or comes anew",
		"pluginmanager.TestPluginsComeAndGo csinode.TestDriversAreWrittenDown", ""},
	{"PLG-4", "no CSINode, no ready Node",
		"csinode.TestNodeIsNotReadyWithoutItsCSINode csinode.TestNewNodeGetsEverythingAnew", ""},
	{"poll: volume reconciler", "the next step follows the last at once",
		"volumemanager.TestDeviceIsUsedOnlyAfterTheHandshake volumemanager.TestMountWaitsForItsObjectAndNotForTheClock", ""},
	{"poll: desired volumes", "what Pods want is known when they come; claims wake them",
		"volumemanager.TestClaims volumemanager.TestMountContinuesWithAClaimEvent volumemanager.TestManyPodsComeAndGo", ""},
	{"poll: wait for attach and mount", "the last mount ends the wait",
		"volumemanager.TestDeviceIsUsedOnlyAfterTheHandshake volumemanager.TestUnmountEndsAMountThatWaits", ""},
	{"poll: volumes gone after the end", "the last unmount ends the wait; what is stuck is tried again",
		"volumemanager.TestBusyVolumeIsTriedAgain", ""},
	{"poll: attachment", "the Node's change wakes who waits",
		"volumemanager.TestDeviceIsUsedOnlyAfterTheHandshake volumemanager.TestVolumeThatNeedsNoAttachmentAfterAll", ""},
	{"poll: volumesInUse", "written when it changes, and the answer awaited",
		"node.TestVolumesInUseAreAcknowledged volumemanager.TestDeviceIsUsedOnlyAfterTheHandshake", ""},
	{"poll: drivers and CSIDrivers", "who comes later is used at once",
		"volumemanager.TestDriverThatComesLaterIsUsedAtOnce volumemanager.TestCSIDriverObjectThatComesLaterIsSeenAtOnce", ""},
	{"poll: republish, tokens, objects", "one watch an object, shared, let go; a timer for each token",
		"objects.TestOneWatchServesAllPods objects.TestWatchThatEndsIsOpenedAnew token.TestRenewalAtFourFifthsOfLifeOrADay volumemanager.TestMountedVolumesFollowTheirObjects", ""},
	{"poll: plugins", "the directory's events",
		"pluginmanager.TestPluginsComeAndGo", ""},
	{"poll: statistics", "on demand",
		"volumemanager.TestVolumeIsExpandedWhileInUse volumemanager.TestMetricsOfClaims", ""},
	{"poll: growth", "told where the controllers are near",
		"volumemanager.TestVolumeIsExpandedAtOnceByAClaimEvent integration.TestSizesOfVolumes",
		"a joined node looks each minute, for it may not watch claims"},
	{"input: answers that are nonsense", "100 MiB, garbage, empty ids",
		"csi.TestResponsesThatCannotBeDecoded csi.TestDriversThatDoNotKnowTheNode csi.TestErrorsOfDriversAreCutShort csi.TestDriverThatPublishesNoDevice", ""},
	{"input: sockets that are none", "a file, nothing, nobody, a long path",
		"csi.TestDriversThatCannotBeReached pluginmanager.TestSocketThatNobodyServes pluginmanager.TestAPluginMayLieDeep registrar.TestTheKubeletIsAnswered", ""},
	{"input: hostile names", "of drivers, plugins and volumes",
		"csi.TestNamesOfDrivers volume.TestNamesOnDisk volumemanager.TestVolumesWithBadSources csidriver.TestHostileInput", ""},
	{"input: missing keys and objects", "a key, a secret, a claim's volume",
		"projected.TestFiles volumemanager.TestVolumesWithBadSources volumemanager.TestClaims", ""},
	{"input: an immutable directory", "volume, step and remedy are named; others go on",
		"volumemanager.TestImmutableVolumeDirectory", ""},
	{"input: paths that lead outside", "of files in volumes, of parts of volumes",
		"atomicwriter.TestBadPathsAreRefused subpath.TestNothingLeadsOutOfTheVolume", ""},
}

// testRooms is where the tests are, by the name that rows give them.
var testRooms = map[string]string{
	"volumemanager": ".", "csinode": "../csinode", "kuberuntime": "../kuberuntime", "node": "../node", "objects": "../objects",
	"pluginmanager": "../pluginmanager", "podworker": "../podworker", "stats": "../stats", "token": "../token",
	"volume": "../../volume", "atomicwriter": "../../volume/atomicwriter", "csi": "../../volume/csi",
	"emptydir": "../../volume/emptydir", "blockpin": "../../volume/blockpin", "kubelet": "..", "fsgroup": "../../volume/fsgroup", "hostpath": "../../volume/hostpath",
	"local": "../../volume/local", "mounts": "../../volume/mounts", "nfs": "../../volume/nfs",
	"operationexecutor": "../../volume/operationexecutor", "keyed": "../../internal/keyed", "projected": "../../volume/projected",
	"subpath": "../../volume/subpath", "csidriver": "../../csidriver", "registrar": "../../csidriver/registrar",
	"integration": "../../test/integration",
}

// TestEveryRowHasItsTests keeps the table true: each row once, each test there, and a row without one says why.
func TestEveryRowHasItsTests(t *testing.T) {
	known := make(map[string]bool)
	for name, dir := range testRooms {
		tests, err := testfuncs.List(dir, "Test")
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
		require.NotEmpty(t, r.tests+r.lacks, "row %s has no test and does not say why", r.row)
		for _, test := range strings.Fields(r.tests) {
			require.True(t, known[test], "row %s names %s, which is not there", r.row, test)
		}
	}
}
