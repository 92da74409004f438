package kubelet_test

// nodeRows are about what Pods get (ENV, NET, SEC, RES, IMG), the rest of the node (GC, LOG, ND, SRV, EVT, MET), its next
// start (CKP), and what wakes it where others poll (the words of section 3).
var nodeRows = []row{
	{"ENV-1", "sources and their order", "envvars.TestBuildOrder envvars.TestBuildSources", "ConfigMap should be consumable via environment variable", ""},
	{"ENV-2", "$(VAR)", "envvars.TestExpand", "Variable Expansion should allow composing env vars into new env vars", ""},
	{"ENV-3", "services", "envvars.TestFromServices", "Pods should contain environment variables for services", ""},
	{"ENV-4", "fields and resources", "envvars.TestBuildSources envvars.TestResourceValueOfPodAndOthers", "Downward API should provide default limits.cpu/memory from node allocatable", ""},
	{"NET-1", "/etc/hosts", "network.TestHosts kuberuntime.TestFiles kuberuntime.TestMounts", "KubeletManagedEtcHosts should test kubelet managed /etc/hosts file", ""},
	{"NET-2", "DNS policies", "network.TestDNS", "", ""},
	{"NET-3", "DNS beyond its limits", "network.TestDNS", "", ""},
	{"NET-4", "host names", "network.TestHostname network.TestKernelHostname kuberuntime.TestSandboxConfigRefuses", "", ""},
	{"NET-5", "host ports", "kuberuntime.TestSandboxConfig", "", ""},
	{"SEC-1", "users, never root if so asked", "securitycontext.TestContainer securitycontext.TestVerifyNonRoot securitycontext.TestUserOf", "should run the container with uid 65534", ""},
	{"SEC-2", "privileges", "securitycontext.TestContainer", "should not allow privilege escalation when false", ""},
	{"SEC-3", "groups", "securitycontext.TestContainer kuberuntime.TestSandboxConfig", "", ""},
	{"SEC-4", "seccomp", "securitycontext.TestContainerDefaults securitycontext.TestContainer securitycontext.TestContainerRefuses securitycontext.TestSandbox", "", ""},
	{"SEC-5", "procMount, AppArmor, SELinux", "securitycontext.TestContainerDefaults securitycontext.TestContainer", "", ""},
	{"SEC-6", "sysctls", "kuberuntime.TestSandboxConfig", "should support sysctls", ""},
	{"RES-1", "QoS class", "qos.TestClass", "Pods Set QOS Class should be set on Pods with matching resource requests and limits", ""},
	{"RES-2", "the tree of groups, by both drivers", "cm.TestNames cm.TestLegacy cm.TestUnified cm.TestSlices kubelet.TestRuntimeSaysTheCgroupDriver", "",
		"nothing was run beside a real systemd"},
	{"RES-3", "limits of a Pod", "cm.TestPodLimits cm.TestFormulas cm.TestLegacy cm.TestUnified", "", ""},
	{"RES-4", "limits of a container", "cm.TestContainerResources cm.TestSwap kubelet.TestResourceConfigurationIsChecked kubelet.TestMachineThatIsNotWanted", "",
		"what version 2 of control groups makes of it was not run: no such machine was at hand"},
	{"RES-5", "v1 and v2", "cm.TestUnified cm.TestUnifiedWithoutAController cm.TestLegacy kubelet.TestMachineThatIsNotWanted", "",
		"v1 is refused only where failCgroupV1 says so: it is used where it is all there is"},
	{"RES-6", "who is killed first for memory", "qos.TestOOMScoreAdj kubelet.TestInjectedMachine", "", ""},
	{"RES-7", "what is reserved is kept from all Pods together", "cm.TestLegacy cm.TestUnified kubelet.TestAllocatableIsEnforced kubelet.TestAllocatableIsTriedAgain " +
		"kubelet.TestResourceConfigurationIsChecked", "", ""},
	{"RES-8", "the burstable group; orphaned groups", "cm.TestLegacy integration.TestKills", "", ""},
	{"RES-9", "resize: granted, deferred, infeasible", "podworker.TestResizeInPlace podworker.TestResizeWaitsForRoom", "Pod InPlace Resize Container burstable pods - extended resize with equivalents", ""},
	{"RES-10", "resize: the order of limits, restarts, failures", "podworker.TestResizeInPlace podworker.TestResizeByRestart podworker.TestResizeThatFailsIsToldAndTriedAgain",
		"Pod InPlace Resize Container resize pod via the replace endpoint", ""},
	{"RES-11", "resources of the Pod as a whole", "cm.TestPodLimits cm.TestContainerResources qos.TestClass qos.TestOOMScoreAdj", "", ""},
	{"IMG-1", "policies", "images.TestPolicies images.TestEvents", "", ""},
	{"IMG-2", "backoff of pulls", "images.TestPullBackOffDoublesAndSuccessEndsIt", "", ""},
	{"IMG-3", "secrets, the node's own logins, and programs for pulls", "images.TestPullSecrets images.TestNodeConfig provider.TestWhichProgramsAreAsked " +
		"provider.TestAnswersAreUsedAgain provider.TestTokens provider.TestAnswersForOneToken provider.TestBrokenPrograms integration.TestPrivateImages", "", ""},
	{"IMG-4", "images of others' secrets", "ledger.TestWhoMay ledger.TestDeathAtEachMoment ledger.TestBrokenRecord ledger.TestRecordsGoWithTheirImages " +
		"images.TestPrivateImage images.TestRefusalDoesNotTell images.TestImportedImage images.TestPullOfUnknownEnd integration.TestPrivateImages", "", ""},
	{"IMG-5", "one pull at a time, or some", "images.TestPullsWaitForTheirTurn images.TestPullsASecondAreBounded kubelet.TestBadConfiguration", "",
		"unlike upstream, berth up sets no bound of pulls a second, and both commands pull four at once"},
	{"IMG-6", "images go when the disk is full", "images.TestCollectorRemovesWhatWasNotUsedForLongest images.TestCollectorRemovesWhatIsTooOld", "", ""},
	{"IMG-7", "images in the node's status", "node.TestRegistersReadyAtOnce node.TestWritesOnlyChangesAndSlowReports node.TestLargestImagesAreListed", "", ""},
	{"GC-1", "ended containers", "kubelet.TestSuperfluousContainers podworker.TestPodRunsAndGoes podworker.TestPodsLiveThroughCrashesOfTheAgent", "", ""},
	{"GC-2", "logs of Pods that are gone", "logs.TestLinks kubelet.TestLinksAndLogsGoWithTheirPods integration.TestPods integration.TestKills", "", ""},
	{"LOG-1", "logs are read, followed, cut", "logs.TestRead logs.TestFollow logs.TestTailAgainstASimpleVersion logs.TestFromPodLogOptions logs.TestPick server.TestLogs", "Pods should support retrieving logs from the container over websockets", ""},
	{"LOG-2", "rotation", "rotate.TestRotation rotate.TestRuntimeThatDoesNotReopenLosesNothing rotate.TestLogThatWasLeftAsideGetsANewFile", "", ""},
	{"ND-1", "registration", "node.TestRegistersReadyAtOnce node.TestTakesOverExistingNode node.TestForbiddenToCreate node.TestAPIServerAway", "", ""},
	{"ND-2", "status on change, or now and then", "node.TestWritesOnlyChangesAndSlowReports node.TestRegistersReadyAtOnce node.TestLinuxMachine", "", ""},
	{"ND-3", "allocatable", "node.TestRegistersReadyAtOnce", "", ""},
	{"ND-4", "conditions", "node.TestReasonsOfOthers node.TestPressure node.TestNetworkNotReady node.TestCordonIsTold", "", ""},
	{"ND-5", "lease", "node.TestLease", "Lease lease API should be available", ""},
	{"ND-6", "runtime down", "node.TestRuntimeAwayHasGrace node.TestRuntimeDownAtStart integration.TestPods", "", ""},
	{"ND-7", "Ready as soon as it is", "node.TestRegistersReadyAtOnce node.TestNetworkNotReady", "", ""},
	{"ND-8", "reboot is told", "node.TestTakesOverExistingNode", "", ""},
	{"ND-9", "API server away", "integration.TestAPIServerAway node.TestAPIServerAway", "", ""},
	{"ND-10", "certificates by request, renewed", "certificate.TestServingCertificate certificate.TestRenewal certificate.TestFailedRenewalsAreCounted certificate.TestKubeconfig integration.TestJoinByBootstrapToken", "", ""},
	{"ND-13", "systemd's watchdog", "watchdog.TestSystemdHearsOfHealthOnly watchdog.TestWithoutWatchdogOrSystemd watchdog.TestBadTimes kubelet.TestHealthFindsWhatHangs", "",
		"nothing was run below a real systemd: its end of the socket is the test's"},
	{"SRV-1", "who may", "server.TestWhoMayDoWhat", "", ""},
	{"SRV-2", "what they may", "server.TestWhoMayDoWhat server.TestCheckpoint server.TestWhatAProcessTellsOfItself", "", ""},
	{"SRV-3", "/pods", "server.TestPods", "", ""},
	{"SRV-4", "/containerLogs", "server.TestLogs server.TestFollowedLogArrivesLineByLineAndEndsWithServer", "", ""},
	{"SRV-5", "exec, attach, portForward, old and new", "server.TestExec server.TestAttach server.TestPortForward server.TestBadStreamRequests", "Pods should support remote command execution over websockets", ""},
	{"SRV-6", "/run", "server.TestRun", "", ""},
	{"SRV-7", "/stats/summary", "stats.TestSummary stats.TestEachFieldIsTold stats.TestSystemContainersOfOneHierarchy " +
		"stats.TestSystemContainersOfManyHierarchies stats.TestPodsPressureIsReadWhereTheRuntimeIsSilent integration.TestNodeAPI", "",
		"what single containers wait for (PSI) is told only where the runtime tells it; groups of version 2 are files of the tests, " +
			"no such machine was at hand"},
	{"SRV-8", "/metrics and below", "server.TestWhoMayDoWhat server.TestWhatAProcessTellsOfItself stats.TestResourceMetrics prober.TestMetricsGoWithThePod", "", ""},
	{"SRV-9", "/healthz", "server.TestHealth server.TestHealthOnLoopback kubelet.TestHealthFindsWhatHangs kubelet.TestOneQuestionAtATime", "", ""},
	{"SRV-10", "switches", "server.TestDebuggingDisabled server.TestWhatIsSwitchedOffSaysSo server.TestWhoMayDoWhat server.TestWhatAProcessTellsOfItself " +
		"server.TestWordsForTheJournal server.TestQueriesAreOffUnlessAskedFor server.TestContentionIsToldIfAskedFor " +
		"server.TestProfilerAndLogLevelAreSwitchedApart kubelet.TestConfigzTellsWhatIsInForce", "", ""},
	{"SRV-11", "/checkpoint", "server.TestCheckpoint integration.TestPods", "", ""},
	{"SRV-12", "the read-only port", "kubelet.TestReadOnlyServer", "", ""},
	{"SRV-13", "certificates are read again", "server.TestCertificatesAreReloaded", "", ""},
	{"EVT-1", "reasons of events", "podworker.TestEventsHaveUpstreamsWords podworker.TestPodsWaitForTheNetwork podworker.TestPostStartThatFails " +
		"images.TestEvents images.TestCollectorTellsWhatFails prober.TestReadinessThresholds prober.TestWarningPasses " +
		"node.TestRegistersReadyAtOnce node.TestRuntimeAwayHasGrace node.TestTakesOverExistingNode node.TestCordonIsTold " +
		"volumemanager.TestFailureIsTriedAgainAfterThePause kubelet.TestSystemOOMIsToldOfTheNode kubelet.TestTwoPodsOfOneNameAreTold " +
		"kubelet.TestGarbageThatStaysIsTold kubelet.TestMachineThatIsNotWanted kubelet.TestAllocatableIsEnforced integration.TestWhy", "",
		"FailedPrepareDynamicResources is never sent: such Pods are refused; Preempting, ExceededGracePeriod, EvictionThresholdMet and Shutdown come with their themes"},
	{"EVT-2", "what an event is about", "podworker.TestEventsSayTheContainer integration.TestWhy", "", ""},
	{"MET-1", "metrics have upstream's names, and move", "kubelet.TestMetricsHaveUpstreamsNames kubelet.TestScrapeOfAPodsLife volumemanager.TestMetricsOfClaims volumemanager.TestVolumesAreCounted " +
		"prober.TestMetricsGoWithThePod stats.TestResourceMetrics podworker.TestWishesForResourcesAreCounted podworker.TestDeferredResourcesThatAreGrantedAreCounted " +
		"podworker.TestResizesAreCountedWithTheirEnd podworker.TestSameUIDAgainBeginsAnew podworker.TestStaticPodWithItsUIDAgainBeginsAnew " +
		"certificate.TestFailedRenewalsAreCounted csinode.TestCallsOfDriversAreMeasured volumemanager.TestOperationsAreMeasured " +
		"volumemanager.TestCancelledOperationIsNoFailure podworker.TestEvictionIsCountedOnce kubelet.TestWhyResizesAreInfeasible " +
		"integration.TestJoinByBootstrapToken integration.TestNodeAPI", "",
		"no preemptions and no pleg_discard_events, since there is neither; no verify_controller_attached_volume among the operations, " +
			"since that is not asked but awaited; device plugins come with their theme"},
	{"CKP-1", "kill and start: nothing is touched", "podworker.TestRestartOfTheAgentChangesNothing podworker.TestPodsLiveThroughCrashesOfTheAgent integration.TestKills integration.TestDemoKeepsItsDataWhateverHappens", "", ""},
	{"CKP-2", "files of state", "allocation.TestFilesAreUpstreams allocation.TestFileThatIsWrongIsDiscarded podworker.TestWishWhileNobodyWatched " +
		"podworker.TestChangeThatACrashCutOff userns.TestNoteThatIsWrongStopsTheGiving volumemanager.TestNewProcessTakesOverWhatIsMounted " +
		"ledger.TestAnotherKubeletsFiles ledger.TestBrokenRecord", "",
		"those of the managers of CPUs, memory and devices and of the shutdown come with these themes"},
	{"CKP-3", "deleted while we were away", "podworker.TestOrphanIsEnded volumemanager.TestOrphansGoAndNothingElse", "", ""},
	{"CKP-4", "reboot", "kuberuntime.TestFiles kuberuntime.TestComputeActionsMain volumemanager.TestCleanStopKeepsDataAsARebootDoes integration.TestDemoKeepsItsDataWhateverHappens", "", ""},
	{"CKP-5", "a second agent ends the first", "kubelet.TestSecondAgentEndsTheFirst kubelet.TestAgentThatDoesNotYieldKeepsItsLock", "", ""},

	{"poll-runtime", "runtime state by events; relist as a net, counted", "pleg.TestEventsMarkTheirPod pleg.TestEverythingIsListedAtConnectAndReconnect pleg.TestLostEventIsFoundAndCounted pleg.TestRuntimeWithoutEventsIsPolled pleg.TestEventsThatSayNothingNewAreKnown integration.TestRuntimeFaults", "", ""},
	{"poll-sync", "nothing is done for each Pod while nothing changes", "podworker.TestRestCostsNothingPerPod", "", ""},
	{"poll-network", "workers wake when the network is there", "podworker.TestPodsWaitForTheNetwork node.TestNetworkNotReady", "", ""},
	{"poll-connection", "a connection that comes or goes is an event", "cri.TestConnectionIsAnEvent cri.TestCallsAreBoundedAndObserved", "", ""},
	{"poll-objects", "one watch an object, for all its Pods", "objects.TestOneWatchServesAllPods objects.TestWatchThatEndsIsOpenedAnew objects.TestStaleEventsAreIgnored objects.TestErrorIsTriedAgain", "", ""},
	{"poll-node", "node status on change", "node.TestWritesOnlyChangesAndSlowReports node.TestChangedByOthersIsPutRight node.TestDeletedNodeComesBack " +
		"node.TestOtherAddressesAreTold addresses.TestAddressesAreFollowed addresses.TestWhatTheKernelDroppedIsFound server.TestAddressesMove " +
		"certificate.TestServingCertificateForOtherAddresses integration.TestNodeFollowsItsAddress", "", ""},
	{"poll-status", "statuses on change", "status.TestStatusIsWrittenAndOthersConditionsStay status.TestFailedWriteIsRetried", "", ""},
	{"poll-probes", "early first verdict, then the period", "prober.TestReadinessIsFoundEarly", "", ""},
	{"poll-deadline", "deadlines are timers", "podworker.TestActiveDeadline", "", ""},
	{"poll-tokens", "tokens are renewed by timers of their own", "token.TestRenewalAtFourFifthsOfLifeOrADay token.TestForgottenTokenIsNotRenewed", "", ""},
	{"poll-files", "manifests by events", "config.TestDirectoryIsFollowed config.TestHalfWrittenManifestEndsNobody", "", ""},
	{"poll-clock", "a clock that was set back", "kuberuntime.TestBackoffAfterTheClockWasSetBack prober.TestProbesAfterTheClockWasSetBack", "", ""},
}
