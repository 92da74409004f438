//go:build browser

package page

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	bin = flag.String("bin", "", "directory of the built programs")
	out = flag.String("out", "", "directory of the screenshots")
	// cluster is for work on the page itself: a cluster that runs already.
	cluster = flag.String("cluster", "", "data directory of a cluster that runs; a new one by default")
)

// limit bounds each wait, on a busy machine, too.
const limit = 3 * time.Minute

// fixture is a cluster with a page and a browser.
type fixture struct {
	t       *testing.T
	dir     string // of the cluster
	browser context.Context
}

// newFixture starts a cluster in namespaces of its own, and a browser.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium was not found: install Debian's package chromium, or run make page")
	}
	f := &fixture{t: t, dir: *cluster}
	if f.dir == "" {
		f.dir = t.TempDir()
		up := f.start("Kubernetes ", "up", "--isolated", "--api-port", "0", "--unsafe-no-fsync")
		t.Cleanup(func() { f.end(up) })
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	browser, stopBrowser := chromedp.NewContext(allocator)
	t.Cleanup(stopBrowser)
	f.browser = browser
	return f
}

// start starts a command of berth and waits until a line of its output contains the text.
func (f *fixture) start(text string, args ...string) *exec.Cmd {
	f.t.Helper()
	command := exec.Command(filepath.Join(*bin, "berth"), append([]string{"--data-dir", f.dir}, args...)...)
	command.Stderr = os.Stderr
	pipe, err := command.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		f.t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			go func() { _, _ = io.Copy(io.Discard, pipe) }()
			command.Args = append(command.Args, lines.Text()) // the last one is what it printed
			return command
		}
	}
	f.t.Fatalf("berth %s ended without %q: %v", args[0], text, command.Wait())
	return nil
}

func (f *fixture) end(command *exec.Cmd) {
	_ = command.Process.Signal(syscall.SIGTERM)
	if err := command.Wait(); err != nil {
		f.t.Errorf("%s: %v", command.Args[3], err)
	}
}

// kubectl runs kubectl with the input.
func (f *fixture) kubectl(input string, args ...string) {
	f.t.Helper()
	command := exec.Command(filepath.Join(*bin, "kubectl"), append([]string{"--kubeconfig", filepath.Join(f.dir, "admin.kubeconfig")}, args...)...)
	command.Stdin = strings.NewReader(input)
	if output, err := command.CombinedOutput(); err != nil {
		f.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// page starts berth page and returns its link.
func (f *fixture) page() string {
	f.t.Helper()
	command := f.start("http://", "page")
	f.t.Cleanup(func() { f.end(command) })
	return command.Args[len(command.Args)-1]
}

// do runs actions of the browser.
func (f *fixture) do(actions ...chromedp.Action) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.browser, limit)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		f.t.Fatal(err)
	}
}

// until waits until the expression is true in the page.
func (f *fixture) until(expression string) {
	f.t.Helper()
	f.do(chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(limit)))
}

// shoot keeps a picture of the whole page.
func (f *fixture) shoot(name string, width int64, dark bool) {
	f.t.Helper()
	if *out == "" {
		return
	}
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	var png []byte
	f.do(chromedp.EmulateViewport(width, 800),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.FullScreenshot(&png, 100))
	if err := os.MkdirAll(*out, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*out, name+".png"), png, 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// pod is a manifest of a Pod whose container has further fields, in YAML's flow style.
func pod(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 0, %s}\n", name, spec)
}

// image is the demo's, which every cluster has.
const image = "image: berth.dev/demo:1"

// stuck are Pods that wait for ten different things, by name.
var stuck = map[string]string{
	"no-config":   "containers: [{name: c, " + image + ", envFrom: [{configMapRef: {name: settings}}]}]",
	"no-secret":   "containers: [{name: c, " + image + ", envFrom: [{secretRef: {name: password}}]}]",
	"no-claim":    "containers: [{name: c, " + image + "}], volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]",
	"no-image":    "containers: [{name: c, image: registry.invalid/none:1}]",
	"no-program":  "containers: [{name: c, " + image + ", command: [/none]}]",
	"too-big":     "containers: [{name: c, " + image + ", resources: {requests: {cpu: '900'}}}]",
	"no-node":     "nodeSelector: {disk: fast}, containers: [{name: c, " + image + "}]",
	"gated":       "schedulingGates: [{name: example.com/budget}], containers: [{name: c, " + image + "}]",
	"not-ready":   "containers: [{name: c, " + image + ", readinessProbe: {tcpSocket: {port: 9}, periodSeconds: 1}}]",
	"no-host-dir": "containers: [{name: c, " + image + "}], volumes: [{name: d, hostPath: {path: /none, type: Directory}}]",
}

// TestThePageShowsWhatWaitsAndWhatGetsWell opens each view on a real cluster with ten stuck Pods, lets four of them get well
// while the page is open, and looks for text of others that is taken for something else.
func TestThePageShowsWhatWaitsAndWhatGetsWell(t *testing.T) {
	f := newFixture(t)
	manifest := ""
	for name, spec := range stuck {
		manifest += pod(name, spec)
	}
	f.kubectl(manifest, "apply", "-f", "-")
	link := f.page()
	f.do(chromedp.Navigate(link))
	f.until(fmt.Sprintf("document.querySelectorAll('#stuck > li').length === %d", len(stuck)))
	f.until("document.querySelector('#live').className === 'live on'")
	f.shoot("now", 1280, false)
	f.shoot("now-dark", 1280, true)
	f.shoot("now-375", 375, false)

	for name, list := range map[string]string{"no-config": "configmap/settings", "no-secret": "secret/password"} {
		kind, object, _ := strings.Cut(list, "/")
		args := []string{"create", kind, object, "--from-literal=a=b"}
		if kind == "secret" {
			args = []string{"create", kind, "generic", object, "--from-literal=a=b"}
		}
		f.kubectl("", args...)
		f.until(fmt.Sprintf("[...document.querySelectorAll('#recent > li .name')].some((e) => e.textContent === 'pod default/%s')", name))
	}
	f.kubectl("", "patch", "pod", "gated", "--type=json", `-p=[{"op": "remove", "path": "/spec/schedulingGates"}]`)
	f.until("[...document.querySelectorAll('#recent > li .name')].some((e) => e.textContent === 'pod default/gated')")
	f.until(fmt.Sprintf("document.querySelectorAll('#stuck > li').length === %d", len(stuck)-3))

	base := link[:strings.LastIndex(link, "/")]
	for name, path := range map[string]string{"pod": "/pod/default/gated", "pod-waiting": "/pod/default/not-ready", "cluster": "/cluster", "compare": "/compare"} {
		f.do(chromedp.Navigate(base + path))
		f.until("document.querySelector('#live').className === 'live on'")
		f.shoot(name, 1280, false)
		f.shoot(name+"-375", 375, true)
		f.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
	}
	f.accessible(base, "/", "/pod/default/gated", "/pod/default/not-ready", "/cluster", "/compare")
}

// accessible runs axe on the pages, if make page has installed it.
func (f *fixture) accessible(base string, paths ...string) {
	f.t.Helper()
	axe, err := os.ReadFile(filepath.Join(*bin, "npm/node_modules/axe-core/axe.min.js"))
	if err != nil {
		f.t.Log("axe was not found: run make page")
		return
	}
	for _, path := range paths {
		var findings []string
		f.do(chromedp.Navigate(base+path), chromedp.Evaluate(string(axe), nil), chromedp.Evaluate(
			"axe.run().then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | ')))", &findings,
			func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
		for _, finding := range findings {
			f.t.Errorf("%s: %s", path, finding)
		}
	}
}

// TestALinkIsRefusedTwice uses a link a second time, as another browser would.
func TestALinkIsRefusedTwice(t *testing.T) {
	f := newFixture(t)
	link := f.page()
	f.do(chromedp.Navigate(link))
	response, err := http.Get(link) //nolint:gosec,noctx // a link of our own
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Fatalf("the second use of a link has status %d", response.StatusCode)
	}
}
