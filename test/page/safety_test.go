//go:build browser

package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// hostile is a text that a page must not take for HTML: its title would change.
const hostile = `</pre></p><img src=x onerror="document.title='taken'"><script>document.title='taken'</script>`

// TestTextOfOthersStaysText shows a Pod whose log, events and errors are HTML.
func TestTextOfOthersStaysText(t *testing.T) {
	f := newFixture(t)
	quoted := "'" + strings.ReplaceAll(hostile, "'", "''") + "'"
	f.kubectl(pod("hostile", "containers: [{name: c, "+image+", env: [{name: DATA_DIR, value: "+quoted+"}]}, {name: d, "+image+", command: ["+quoted+"]}]")+
		"---\napiVersion: v1\nkind: Event\nmetadata: {name: hostile}\ntype: Warning\nreason: "+quoted+"\nmessage: "+quoted+
		"\nsource: {component: "+quoted+"}\ninvolvedObject: {apiVersion: v1, kind: Pod, name: hostile, namespace: default}\n", "apply", "-f", "-")
	uid := f.kubectl("", "get", "pod", "hostile", "-o", "jsonpath={.metadata.uid}")
	f.kubectl("", "patch", "event", "hostile", "--type=merge", `-p={"involvedObject": {"uid": "`+uid+`"}}`)
	f.do(chromedp.Navigate(f.link))
	f.until(row("stuck", "hostile"))
	f.open("/pod/default/hostile")
	f.until("document.querySelector('#log pre')?.textContent.includes('onerror')")
	f.until("document.querySelector('#events')?.textContent.includes('onerror')")
	f.until("document.querySelector('#object')?.textContent.includes('onerror') || document.querySelector('#stages')?.textContent.includes('onerror')")
	f.shoot("hostile", 1280, false)
	f.fits("/pod/default/hostile")
	for _, path := range []string{"/", "/pod/default/hostile", "/compare", "/search?q=" + url.QueryEscape(hostile)} {
		f.do(chromedp.Navigate(f.base() + path))
		f.until("document.readyState === 'complete' && document.querySelector('h1') !== null")
		if eval[bool](f, "document.title.includes('taken') || document.querySelector('main img, main script') !== null") {
			t.Errorf("%s: a text of others became HTML", path)
		}
	}
}

// TestOnlyTheBrowserWithTheLinkReads uses the page as other sites, other browsers and other programs would.
func TestOnlyTheBrowserWithTheLinkReads(t *testing.T) {
	f := newFixture(t)
	status := func(target string, change func(r *http.Request)) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		change(request)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for name, test := range map[string]struct {
		target string
		change func(r *http.Request)
		want   int
	}{
		"no token":       {f.base() + "/", func(*http.Request) {}, http.StatusUnauthorized},
		"wrong token":    {f.base() + "/?token=AAAAAAAAAAAAAAAAAAAAAAAAAA", func(*http.Request) {}, http.StatusUnauthorized},
		"foreign Origin": {f.link, func(r *http.Request) { r.Header.Set("Origin", "http://"+foreignHost) }, http.StatusForbidden},
		"foreign Host":   {f.link, func(r *http.Request) { r.Host = foreignHost }, http.StatusMisdirectedRequest},
		"write":          {f.link, func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
	} {
		if got := status(test.target, test.change); got != test.want {
			t.Errorf("%s: status %d, want %d", name, got, test.want)
		}
	}
	f.do(chromedp.Navigate(f.link)) // none of those has used it up
	f.until("document.querySelector('#live')?.className === 'live on'")
	if got := status(f.link, func(*http.Request) {}); got != http.StatusUnauthorized {
		t.Errorf("the second use of a link has status %d", got)
	}
	address, err := url.Parse(f.base())
	if err != nil {
		t.Fatal(err)
	}
	f.do(chromedp.Navigate("http://" + foreignHost + ":" + address.Port() + "/"))
	f.until("document.querySelector('h1')?.textContent === 'This page is not reached by that name.'")
	f.shoot("refused", 1280, false)
	f.foreignPage()
	f.open("/") // this browser may read still
	f.viewerPage()
}

// viewerPage opens the page of a user who may read one namespace, which shows that and names what it may not read.
func (f *fixture) viewerPage() {
	f.t.Helper()
	f.kubectl("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n", "apply", "-f", "-")
	f.kubectl("", "create", "rolebinding", "viewers", "--clusterrole=view", "--group=viewers", "-n", "shop")
	f.kubectl(pod("secret-pod", "schedulingGates: [{name: example.com/budget}], containers: [{name: c, "+image+"}]"), "apply", "-f", "-")
	f.kubectl(pod("shop-pod", "schedulingGates: [{name: example.com/budget}], containers: [{name: c, "+image+"}]"), "apply", "-n", "shop", "-f", "-")
	kubeconfig := filepath.Join(f.t.TempDir(), "viewer.kubeconfig")
	command := exec.Command(filepath.Join(*bin, "berth"), "--data-dir", f.dir, "kubeconfig", "--user", "joe", "--group", "viewers", "-o", kubeconfig)
	if output, err := command.CombinedOutput(); err != nil {
		f.t.Fatalf("berth kubeconfig: %v\n%s", err, output)
	}
	own := f.link
	defer func() { f.link = own }()
	f.link = f.start("http://", "page", "--kubeconfig", kubeconfig, "-n", "shop")
	f.do(chromedp.Navigate(f.link))
	f.until("[...document.querySelectorAll('#stuck .name')].some((e) => e.textContent === 'pod shop/shop-pod')")
	f.shoot("viewer", 1280, false)
	if text := eval[string](f, "document.body.textContent"); strings.Contains(text, "secret-pod") {
		f.t.Errorf("the page shows what its user may not read:\n%s", text)
	}
	f.do(chromedp.Navigate(f.base() + "/pod/default/secret-pod"))
	f.until("document.readyState === 'complete' && document.querySelector('h1') !== null")
	if text := eval[string](f, "document.body.textContent"); strings.Contains(text, "example.com/budget") {
		f.t.Errorf("the page shows an object that its user may not read:\n%s", text)
	}
}

// foreignPage opens the page of another origin, which tries to read and to frame this one with the browser's cookies.
func (f *fixture) foreignPage() {
	f.t.Helper()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<!doctype html><title>other</title><iframe id="frame" src="%[1]s/"></iframe><script>
			window.results = {};
			fetch('%[1]s/', {credentials: 'include'}).then(() => results.fetch = 'read', () => results.fetch = 'refused');
			fetch('%[1]s/', {credentials: 'include', mode: 'no-cors'}).then((r) => results.blind = r.type, () => results.blind = 'refused');
			const events = new EventSource('%[1]s/events?page=/', {withCredentials: true});
			events.onmessage = () => results.events = 'read';
			events.onerror = () => results.events ??= 'refused';
		</script>`, f.base())
	}))
	defer other.Close()
	f.do(chromedp.Navigate(other.URL))
	f.until("window.results && results.fetch === 'refused' && results.events === 'refused' && results.blind === 'refused'")
	f.until("(() => { try { return document.getElementById('frame').contentDocument === null } catch { return true } })()")
}
