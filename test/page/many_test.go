//go:build browser

package page

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// many is how many Pods there are; rounds how often one of them changes.
const many, rounds = 1000, 20

// TestAThousandPods measures what an open page costs and how fast a change reaches the browser, with a thousand Pods that wait. The
// figures are logged; the limits are those of a machine that does much else.
func TestAThousandPods(t *testing.T) {
	f := newFixture(t)
	var manifest strings.Builder
	for i := range many {
		manifest.WriteString(pod(fmt.Sprintf("p%d", i), fmt.Sprintf("schedulingGates: [{name: example.com/budget}, {name: example.com/mark-%d}], containers: [{name: c, "+image+"}]", i)))
	}
	f.kubectl(manifest.String(), "create", "-f", "-")
	f.do(chromedp.Navigate(f.link))
	f.until(fmt.Sprintf("document.querySelectorAll('#stuck > li').length === %d", many))
	f.shoot("many", 1280, false)
	proxy := f.proxy()
	const idle = 30 * time.Second
	node := f.nodeProcess()
	eval[any](f, `window.longest = 0; new PerformanceObserver((list) => {
		for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
	}).observe({type: 'longtask'}); 0`)
	before := cpuOf(t, node)
	began := time.Now()
	f.do(chromedp.Sleep(idle))
	used := float64(cpuOf(t, node)-before) / float64(time.Since(began)) * 100
	t.Logf("an open page with %d Pods that wait: %.2f %% of a core, of the whole node's process", many, used)

	// The page notes the moment at which the row of a Pod changes.
	eval[any](f, `window.seen = {}; new MutationObserver((changes) => {
		for (const change of changes) for (const li of change.addedNodes) {
			const mark = li.textContent.match(/mark-\d+/); if (mark) window.seen[mark[0]] ??= Date.now();
		}
	}).observe(document.getElementById('stuck'), {childList: true}); 0`)
	var delays []time.Duration
	for i := range rounds {
		mark := fmt.Sprintf("mark-%d", i)
		sent := time.Now()
		proxy.patch(t, fmt.Sprintf("/api/v1/namespaces/default/pods/p%d", i), `[{"op": "remove", "path": "/spec/schedulingGates/0"}]`)
		f.until("window.seen['" + mark + "'] !== undefined")
		delays = append(delays, time.UnixMilli(eval[int64](f, "window.seen['"+mark+"']")).Sub(sent))
	}
	slices.Sort(delays)
	t.Logf("from the request to the row in the browser: median %v, slowest %v", delays[rounds/2], delays[rounds-1])
	t.Logf("longest task of the browser: %.0f ms (0: none took 50 ms)", eval[float64](f, "window.longest"))
	if used > 50 || delays[rounds/2] > 2*time.Second {
		t.Errorf("an open page costs %.2f %% of a core, and shows a change after %v", used, delays[rounds/2])
	}
}

// nodeProcess is the process that serves the page of `berth up`.
func (f *fixture) nodeProcess() int {
	f.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, file := range files {
		data, _ := os.ReadFile(file) // it may have ended
		if strings.Contains(string(data), "node-process\x00"+f.dir) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2]) // the pattern has digits
			return pid
		}
	}
	f.t.Fatal("the node's process was not found")
	return 0
}

// cpuOf returns the CPU time that a process has used.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')'):]))
	user, _ := strconv.Atoi(fields[12])
	system, _ := strconv.Atoi(fields[13])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}

// proxy is a kubectl proxy.
type proxy struct{ base string }

func (f *fixture) proxy() proxy {
	f.t.Helper()
	command := exec.Command(filepath.Join(*bin, "kubectl"), "--kubeconfig", filepath.Join(f.dir, "admin.kubeconfig"), "proxy", "--port=0")
	pipe, err := command.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	lines := bufio.NewScanner(pipe)
	lines.Scan() // Starting to serve on 127.0.0.1:PORT
	words := strings.Fields(lines.Text())
	return proxy{"http://" + words[len(words)-1]}
}

// patch changes an object.
func (p proxy) patch(t *testing.T, path, change string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, p.base+path, strings.NewReader(change))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json-patch+json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("patch %s: %s", path, response.Status)
	}
}
