// Command cadvisor is the part of cAdvisor's program that upstream's node suite uses to measure the kubelet and the container
// runtime: the statistics of a cgroup, by name, in version 2.1 of its API. cAdvisor's packages do the work; its own program is a
// module that the Go module proxy does not have.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"time"

	"github.com/google/cadvisor/cache/memory"
	"github.com/google/cadvisor/container"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/google/cadvisor/manager"
	"github.com/google/cadvisor/utils/sysfs"
)

// keepStats is how long samples are kept, which is cAdvisor's default.
const keepStats = 2 * time.Minute

func main() {
	// The package manager defines --housekeeping_interval.
	port := flag.Int("port", 8080, "port to listen on")
	profiling := flag.Bool("profiling", false, "serve /debug/pprof/")
	flag.Parse()
	if err := run(*port, *profiling); err != nil {
		fmt.Fprintln(os.Stderr, "cadvisor:", err)
		os.Exit(1)
	}
}

func run(port int, profiling bool) error {
	longest, dynamic := time.Minute, true // cAdvisor's defaults
	all := []string{""}                   // prefixes of the cgroups that are measured
	m, err := manager.New(memory.New(keepStats, nil), sysfs.NewRealSysFs(),
		manager.HousekeepingConfig{Interval: &longest, AllowDynamic: &dynamic},
		container.MetricSet{container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}}, http.DefaultClient, all, nil, "", 0)
	if err != nil {
		return fmt.Errorf("create manager: %w", err)
	}
	if err := m.Start(); err != nil {
		return fmt.Errorf("start manager: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v2.1/stats/{name...}", func(w http.ResponseWriter, r *http.Request) { serveStats(w, r, m) })
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
	}
	return http.ListenAndServe(fmt.Sprintf(":%d", port), mux)
}

// serveStats responds with the last samples of the cgroup that the path names.
func serveStats(w http.ResponseWriter, r *http.Request, m manager.Manager) {
	query := r.URL.Query()
	count, err := strconv.Atoi(query.Get("count"))
	if err != nil || query.Get("type") != v2.TypeName || query.Get("recursive") == "true" {
		http.Error(w, "want type=name, recursive=false and a count", http.StatusBadRequest)
		return
	}
	infos, err := m.GetContainerInfoV2("/"+r.PathValue("name"), v2.RequestOptions{IdType: v2.TypeName, Count: count})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(infos); err != nil {
		log.Print("write response: ", err)
	}
}
