//go:build browser

package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// pod is a manifest of a Pod whose spec has further fields, in YAML's flow style.
func pod(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 0, %s}\n", name, spec)
}

// image is the demo's, which every cluster has.
const image = "image: 'berth.local/demo:v1'"

// stuck are Pods that wait for ten different things, by name.
var stuck = map[string]string{
	"no-config":   "containers: [{name: c, " + image + ", envFrom: [{configMapRef: {name: settings}}]}]",
	"no-secret":   "containers: [{name: c, " + image + ", envFrom: [{secretRef: {name: password}}]}]",
	"no-claim":    "containers: [{name: c, " + image + "}], volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]",
	"no-image":    "containers: [{name: c, image: 'registry.invalid/none:1'}]",
	"no-program":  "containers: [{name: c, " + image + ", command: [/none]}]",
	"too-big":     "containers: [{name: c, " + image + ", resources: {requests: {cpu: '900'}}}]",
	"no-node":     "nodeSelector: {disk: fast}, containers: [{name: c, " + image + "}]",
	"gated":       "schedulingGates: [{name: example.com/budget}], containers: [{name: c, " + image + "}]",
	"not-ready":   "containers: [{name: c, " + image + ", readinessProbe: {tcpSocket: {port: 9}, periodSeconds: 1}}]",
	"no-host-dir": "containers: [{name: c, " + image + "}], volumes: [{name: d, hostPath: {path: /none, type: Directory}}]",
}

// TestThePageShowsWhatWaitsAndWhatGetsWell opens each view on a real cluster with ten stuck Pods, by the link that `berth up` has
// printed, and lets five of them get well while the page is open.
func TestThePageShowsWhatWaitsAndWhatGetsWell(t *testing.T) {
	f := newFixture(t)
	manifest := ""
	for name, spec := range stuck {
		manifest += pod(name, spec)
	}
	f.do(chromedp.Navigate(f.link))
	f.until("document.querySelector('#live')?.className === 'live on'")
	f.until("document.querySelector('#summary')?.textContent.includes('Nothing is stuck')")
	f.shoot("nothing", 1280, false)
	f.kubectl(manifest, "apply", "-f", "-")
	f.until(fmt.Sprintf("document.querySelectorAll('#stuck > li').length === %d", len(stuck)))
	for name := range stuck {
		f.until(row("stuck", name))
	}
	f.shoot("now", 1280, false)
	f.shoot("now-dark", 1280, true)
	f.shoot("now-375", 375, false)
	f.fits("/")

	f.kubectl("", "create", "configmap", "settings", "--from-literal=a=b")
	f.until(row("recent", "no-config"))
	f.kubectl("", "create", "secret", "generic", "password", "--from-literal=a=b")
	f.until(row("recent", "no-secret"))
	f.kubectl("", "patch", "pod", "gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	f.until(row("recent", "gated"))
	f.kubectl("", "label", "node", "--all", "disk=fast")
	f.until(row("recent", "no-node"))
	f.getsWellOnItsOwnPage()
	f.otherViews()
	f.keys()
	f.accessible("/", "/pod/default/gated", "/pod/default/not-ready", "/pod/default/no-image", "/pvc/default/data", "/cluster", "/compare", "/search?q=no")
}

// row is an expression that is true when a list has the Pod.
func row(list, pod string) string {
	return fmt.Sprintf("[...document.querySelectorAll('#%s > li .name')].some((e) => e.textContent === 'pod default/%s')", list, pod)
}

// getsWellOnItsOwnPage has a Pod become ready while its own page is open, and follows it to its claim and its volume.
func (f *fixture) getsWellOnItsOwnPage() {
	f.t.Helper()
	f.open("/pod/default/no-claim")
	f.until("document.querySelector('.state').textContent === 'Waiting'")
	f.shoot("pod-waiting", 1280, false)
	f.kubectl("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}\n",
		"apply", "-f", "-")
	f.until("document.querySelector('.state').textContent === 'Ready'")
	f.until("document.querySelector('#log pre')?.textContent.includes('listening on')")
	f.until("[...document.querySelectorAll('#relations a')].some((a) => a.textContent === 'pvc default/data')")
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
		"service": "/service/default/kubernetes", "pod-failing": "/pod/default/no-image", "cluster": "/cluster", "compare": "/compare", "search": "/search?q=no",
	} {
		f.do(chromedp.Navigate(f.base() + path))
		f.until("document.readyState === 'complete' && document.querySelector('h1') !== null")
		if name == "cluster" {
			f.until("document.querySelectorAll('#nodes svg.lc').length === 2")
			f.until("document.querySelector('#start svg') !== null")
		}
		f.shoot(name, 1280, false)
		f.shoot(name+"-375", 375, true)
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
	f.until("document.activeElement === document.querySelectorAll('#stuck > li')[1].querySelector('a')")
	f.do(chromedp.KeyEvent("k"))
	f.until("document.activeElement === document.querySelectorAll('#stuck > li')[0].querySelector('a')")
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
