//go:build browser

package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// pod is a manifest of a Pod whose spec has further fields, in YAML's flow style.
func pod(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %[1]s, labels: {app: %[1]s}}\nspec: {terminationGracePeriodSeconds: 0, %[2]s}\n", name, spec)
}

// image is the demo's, which every cluster has.
const image = "image: 'berth.local/demo:v1'"

// stuckPod is a Pod that waits for something, and what repairs it.
type stuckPod struct {
	spec   string
	repair func(f *fixture)
}

// stuckPods wait for ten different things. dir is a directory of the machine that some of them mount.
func stuckPods(dir string) map[string]stuckPod {
	kubectl := func(args ...string) func(f *fixture) { return func(f *fixture) { f.kubectl("", args...) } }
	inDir := func(container string) string {
		return "containers: [{name: c, " + image + ", volumeMounts: [{name: d, mountPath: /host}], " + container + "}], volumes: [{name: d, hostPath: {path: " + dir + "}}]"
	}
	return map[string]stuckPod{
		"no-config": {"containers: [{name: c, " + image + ", envFrom: [{configMapRef: {name: settings}}]}]",
			kubectl("create", "configmap", "settings", "--from-literal=a=b")},
		"no-secret": {"containers: [{name: c, " + image + ", envFrom: [{secretRef: {name: password}}]}]",
			kubectl("create", "secret", "generic", "password", "--from-literal=a=b")},
		"no-claim": {"containers: [{name: c, " + image + "}], volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]", func(f *fixture) {
			f.kubectl("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"+
				"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}\n", "apply", "-f", "-")
		}},
		"no-image": {"containers: [{name: c, image: 'registry.invalid/none:1'}]", kubectl("set", "image", "pod/no-image", "c=berth.local/demo:v1")},
		"no-program": {inDir("command: [/host/program]"), func(f *fixture) {
			data, err := os.ReadFile(filepath.Join(*bin, "images/demo"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "program"), data, 0o755)
			}
			if err != nil {
				f.t.Fatal(err)
			}
		}},
		"too-big": {"containers: [{name: c, " + image + ", resources: {requests: {cpu: '900'}}}]",
			kubectl("patch", "pod", "too-big", "--subresource=resize", `-p={"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "10m"}}}]}}`)},
		"no-node": {"nodeSelector: {disk: fast}, containers: [{name: c, " + image + "}]", kubectl("label", "node", "--all", "disk=fast")},
		"gated": {"schedulingGates: [{name: example.com/budget}], containers: [{name: c, " + image + "}]",
			kubectl("patch", "pod", "gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)},
		"not-ready": {inDir("env: [{name: DATA_DIR, value: /host/data}], readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}"),
			func(f *fixture) { f.mkdir(filepath.Join(dir, "data")) }},
		"no-host-dir": {"containers: [{name: c, " + image + "}], volumes: [{name: d, hostPath: {path: " + dir + "/later, type: Directory}}]",
			func(f *fixture) { f.mkdir(filepath.Join(dir, "later")) }},
	}
}

// mkdir makes a directory to which Pods may write.
func (f *fixture) mkdir(dir string) {
	f.t.Helper()
	if err := os.Mkdir(dir, 0o777); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { // whatever the umask is
		f.t.Fatal(err)
	}
}

// service leads to the Pod that is not ready.
const service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec: {selector: {app: not-ready}, ports: [{port: 80, targetPort: 8080}]}\n"

// TestThePageShowsWhatWaitsAndWhatGetsWell opens each view on a real cluster with ten Pods that are stuck in ten ways, by the link that
// `berth up` has printed, and lets all of them get well while the page is open.
func TestThePageShowsWhatWaitsAndWhatGetsWell(t *testing.T) {
	f := newFixture(t)
	stuck := stuckPods(t.TempDir())
	manifest := service
	for name, waits := range stuck {
		manifest += pod(name, waits.spec)
	}
	f.do(chromedp.Navigate(f.link))
	f.until("document.querySelector('#live')?.className === 'live on'")
	f.until("document.querySelector('#summary')?.textContent.includes('Nothing is stuck')")
	f.shoot("nothing", 1280, false)
	f.kubectl(manifest, "apply", "-f", "-")
	f.until(fmt.Sprintf("document.querySelectorAll('#stuck > li').length === %d", len(stuck)+1))
	for name := range stuck {
		f.until(row("stuck", name))
	}
	f.until("[...document.querySelectorAll('#stuck .name')].some((e) => e.textContent === 'service default/shop')")
	for name, width := range map[string]int64{"now": 1280, "now-375": 375, "now-wide": 1920} {
		f.shoot(name, width, false)
	}
	f.shoot("now-dark", 1280, true)
	f.fits("/")
	f.keys()
	f.open("/pod/default/no-image")
	f.shoot("pod-failing", 1280, false)
	f.shoot("pod-failing-375", 375, true)
	f.accessible("/", "/pod/default/gated", "/pod/default/not-ready", "/pod/default/no-image", "/service/default/shop", "/search?q=no")

	f.getsWellOnItsOwnPage(stuck["no-claim"])
	f.serviceGetsWell(stuck["not-ready"])
	f.open("/")
	for name, waits := range stuck {
		if name != "no-claim" && name != "not-ready" {
			waits.repair(f)
			f.until(row("recent", name))
		}
	}
	f.until("document.querySelector('#summary')?.textContent.includes('Nothing is stuck')")
	f.shoot("well", 1280, false)
	f.otherViews()
	f.accessible("/", "/pod/default/no-claim", "/pvc/default/data", "/cluster", "/compare")
}

// row is an expression that is true when a list has the Pod.
func row(list, pod string) string {
	return fmt.Sprintf("[...document.querySelectorAll('#%s > li .name')].some((e) => e.textContent === 'pod default/%s')", list, pod)
}

// serviceGetsWell has a Service become reachable while its page is open.
func (f *fixture) serviceGetsWell(waits stuckPod) {
	f.t.Helper()
	f.open("/service/default/shop")
	f.until("document.querySelector('.state').textContent !== 'Ready'")
	f.shoot("service-waiting", 1280, false)
	waits.repair(f)
	f.until("document.querySelector('.state').textContent === 'Ready'")
	f.until("[...document.querySelectorAll('#relations a')].some((a) => a.textContent === 'pod default/not-ready')")
	f.shoot("service", 1280, false)
	f.shoot("service-375", 375, true)
	f.fits("/service/default/shop")
}

// getsWellOnItsOwnPage has a Pod become ready while its own page is open, and follows it to its claim and its volume.
func (f *fixture) getsWellOnItsOwnPage(waits stuckPod) {
	f.t.Helper()
	f.open("/pod/default/no-claim")
	f.until("document.querySelector('.state').textContent === 'Waiting'")
	f.shoot("pod-waiting", 1280, false)
	waits.repair(f)
	f.until("document.querySelector('.state').textContent === 'Ready'")
	f.until("document.querySelector('#log pre')?.textContent.includes('listening on')")
	f.until("[...document.querySelectorAll('#relations a')].some((a) => a.textContent === 'pvc default/data')")
	uid := f.kubectl("", "get", "pod", "no-claim", "-o", "jsonpath={.metadata.uid}")
	f.until("document.querySelector('#object dl')?.textContent.includes('" + strings.ReplaceAll(uid, "-", "") + "')") // its trace
	f.shoot("pod", 1280, false)
	f.shoot("pod-dark", 1920, true)
	f.shoot("pod-375", 375, false)
	f.fits("/pod/default/no-claim")
	f.do(chromedp.Click(chromedp.CSS("#relations a[href='/pvc/default/data']")))
	f.until("document.querySelector('h1')?.textContent === 'data' && document.querySelector('.state').textContent === 'Ready'")
	f.shoot("claim", 1280, false)
	f.until("[...document.querySelectorAll('#relations a')].some((a) => a.textContent.startsWith('pv '))")
	eval[any](f, "void [...document.querySelectorAll('#relations a')].find((a) => a.textContent.startsWith('pv ')).click()")
	f.until("document.querySelector('.crumb')?.textContent.startsWith('PersistentVolume')")
	f.shoot("volume", 1280, false)
}

// otherViews shows a Service, a node, the cluster with what it uses, and the comparison.
func (f *fixture) otherViews() {
	f.t.Helper()
	for name, path := range map[string]string{
		"node": "/node/" + f.kubectl("", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"), "cluster": "/cluster", "compare": "/compare", "search": "/search?q=no",
	} {
		f.do(chromedp.Navigate(f.base() + path))
		f.until("document.readyState === 'complete' && document.querySelector('h1') !== null")
		if name == "cluster" {
			f.until("document.querySelectorAll('#nodes .lc svg').length === 2")
			f.until("document.querySelector('#start svg') !== null")
		}
		f.shoot(name, 1280, false)
		f.shoot(name+"-dark", 1920, true)
		f.shoot(name+"-375", 375, false)
		f.fits(path)
	}
}

// fits checks that the page is not wider than its window, at the width of a telephone.
func (f *fixture) fits(path string) {
	f.t.Helper()
	f.do(chromedp.EmulateViewport(375, 800))
	wide := eval[[]int](f, "[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
	f.do(chromedp.EmulateViewport(1280, 800))
	if wide[0] > wide[1] {
		f.t.Errorf("%s is %d pixels wide in a window of %d", path, wide[0], wide[1])
	}
}

// keys moves by the keyboard alone.
func (f *fixture) keys() {
	f.t.Helper()
	f.open("/compare")
	f.do(chromedp.KeyEvent("n"))
	f.until("location.pathname === '/' && document.querySelectorAll('#stuck > li').length > 1 && document.querySelector('#live').className === 'live on'")
	f.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"))
	// Rows may change places meanwhile; the focus stays with its row.
	f.until("document.activeElement.closest('#stuck > li') !== null")
	at := eval[string](f, "document.activeElement.closest('#stuck > li').id")
	f.do(chromedp.KeyEvent("j"))
	f.until("![null, " + strconv.Quote(at) + "].includes(document.activeElement.closest('#stuck > li')?.id ?? null)")
	f.do(chromedp.KeyEvent("k"))
	f.until("document.activeElement.closest('#stuck > li') !== null")
	f.do(chromedp.KeyEvent("/"))
	f.until("document.activeElement.type === 'search'")
	f.do(chromedp.KeyEvent("no-secret"), chromedp.KeyEvent(kb.Enter))
	f.until("location.pathname === '/pod/default/no-secret' && document.querySelector('#live')?.className === 'live on'")
	f.do(chromedp.KeyEvent("c"))
	f.until("location.pathname === '/cluster'")
}

// accessible runs axe on the pages in both colour schemes.
func (f *fixture) accessible(paths ...string) {
	f.t.Helper()
	axe, err := os.ReadFile(filepath.Join(*bin, "npm/node_modules/axe-core/axe.min.js"))
	if err != nil {
		f.t.Fatalf("axe was not found: run make page: %v", err)
	}
	for _, path := range paths {
		for _, dark := range []bool{false, true} {
			f.do(scheme(dark), chromedp.Navigate(f.base()+path))
			eval[any](f, string(axe)+"; 0")
			findings := eval[[]string](f,
				"axe.run().then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html + ' ' + n.failureSummary).join(' | ')))",
				chromedp.EvalAwaitPromise)
			for _, finding := range findings {
				f.t.Errorf("%s (dark: %v): %s", path, dark, strings.TrimSpace(finding))
			}
		}
	}
}
