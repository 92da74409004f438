// Package berthtest gives Go tests a whole Kubernetes with real Pods: controllers that run, Services, DNS, volumes and garbage
// collection.
//
// [Start] starts a cluster for one test, [Shared] one for all tests of a package, each of which gets a namespace. A cluster
// runs in namespaces of the kernel of its own, so that any number of them run at the same time, whatever they call their networks,
// and nothing of it is left when the test process ends, however it ends.
//
//	func TestController(t *testing.T) {
//		c := berthtest.Start(t)
//		c.LoadImage("example.com/app:v1", "./cmd/app")
//		c.Apply(manifest)
//		berthtest.Eventually(c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, "ready", isReady)
//	}
//
// A test that fails logs what `berth explain` says of all that is not running, the events and the ends of the containers' logs.
//
// # Suites for envtest
//
// A suite that was written for controller-runtime's package envtest, such as those that kubebuilder makes, uses whole clusters by a change of
// the import; see [Environment]. Its types are of this package, which does not need controller-runtime; the suite's has to compile with the
// client-go that this package uses:
//
//	import envtest "github.com/berth-dev/berth/berthtest"
//
// # What it needs
//
// The programs of Berth: those of the directory $BERTH_BIN, else those beside the `berth` on the PATH, else those that were built for the version of
// Berth that the module requires: `go run github.com/berth-dev/berth/cmd/berth setup` builds them once, and $BERTH_BUILD=1 does so from a test.
// And root, because containers do; an Environment with APIOnly does not:
//
//	go test -c -o /tmp/app.test . && sudo -E /tmp/app.test
//
// A test without them fails; with BERTHTEST_SKIP=1 in the environment it is skipped.
package berthtest
