//go:build browser

package page

import (
	"bufio"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
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
	link    string // to its page
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
		// No program listens there: what counts is that traces are requested.
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
		f.link = f.start("  see it ", "up", "--isolated", "--api-port", "0", "--unsafe-no-fsync")
	} else {
		f.link = f.start("http://", "page")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("host-resolver-rules", "MAP "+foreignHost+" 127.0.0.1"))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	browser, stopBrowser := chromedp.NewContext(allocator)
	t.Cleanup(stopBrowser)
	if err := chromedp.Do(browser, chromedp.Navigate("about:blank")); err != nil { // which starts it
		t.Fatal(err)
	}
	f.browser = browser
	return f
}

// foreignHost is a name of another site, which leads to this machine.
const foreignHost = "rebound.example"

// start starts a command of berth, which runs until the end of the test, and waits until a line of its output contains the text. It
// returns the line's last word.
func (f *fixture) start(text string, args ...string) string {
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
	f.t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil {
			f.t.Errorf("berth %s: %v", args[0], err)
		}
	})
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			go func() { _, _ = io.Copy(io.Discard, pipe) }()
			words := strings.Fields(lines.Text())
			return words[len(words)-1]
		}
	}
	f.t.Fatalf("berth %s ended without %q", args[0], text)
	return ""
}

// kubectl runs kubectl with the input and returns what it prints.
func (f *fixture) kubectl(input string, args ...string) string {
	f.t.Helper()
	command := exec.Command(filepath.Join(*bin, "kubectl"), append([]string{"--kubeconfig", filepath.Join(f.dir, "admin.kubeconfig")}, args...)...)
	command.Stdin = strings.NewReader(input)
	output, err := command.CombinedOutput()
	if err != nil {
		f.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// base is the page's address without a path.
func (f *fixture) base() string { return f.link[:strings.LastIndex(f.link, "/")] }

// do runs actions of the browser.
func (f *fixture) do(actions ...chromedp.Action[chromedp.Void]) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.browser, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		f.t.Fatal(err)
	}
}

// eval returns the value of an expression in the page.
func eval[T any](f *fixture, expression string, options ...chromedp.EvaluateOption) T {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.browser, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		f.t.Fatalf("%.200s: %v", expression, err)
	}
	return value
}

// until waits until the expression is true in the page. A page that is left meanwhile is evaluated anew.
func (f *fixture) until(expression string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.browser, limit)
	defer cancel()
	for {
		_, err := chromedp.Run(ctx, chromedp.Poll[chromedp.Void]("!!("+expression+")", chromedp.WithPollingTimeout(limit)))
		if err == nil {
			return
		}
		if ctx.Err() == nil && (strings.Contains(err.Error(), "context") || strings.Contains(err.Error(), "navigated")) {
			continue // the browser has gone to another page
		}
		f.shoot("failed", 1280, false)
		f.t.Fatalf("%s: %v", expression, err)
	}
}

// open opens a path of the page and waits until it is live.
func (f *fixture) open(path string) {
	f.t.Helper()
	f.do(chromedp.Navigate(f.base() + path))
	f.until("document.querySelector('#live')?.className === 'live on'")
}

// scheme sets the colour scheme.
func scheme(dark bool) chromedp.Action[chromedp.Void] {
	value := "light"
	if dark {
		value = "dark"
	}
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}},
		})
		return err
	})
}

// shoot keeps a picture of the whole page.
func (f *fixture) shoot(name string, width int64, dark bool) {
	f.t.Helper()
	if *out == "" {
		return
	}
	f.do(chromedp.EmulateViewport(width, 800), scheme(dark))
	ctx, cancel := context.WithTimeout(f.browser, limit)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*out, name+".png"), png, 0o644); err != nil {
		f.t.Fatal(err)
	}
}
