package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/up"
)

// shownFiles is how many damaged files a diagnosis names.
const shownFiles = 5

// checkDamagedFiles reports state files that were set aside because they were damaged. It does not read what Pods and
// containerd have written.
func checkDamagedFiles(layout up.Layout) diagnosis {
	foreign := map[string]bool{layout.ContainerdRoot(): true, layout.PodLogsDir(): true, layout.VolumesDir(): true}
	found := statefile.Find(layout.DataDir, func(path string) bool {
		parent := filepath.Base(filepath.Dir(path))
		return foreign[path] || parent == "kubernetes.io~empty-dir" || filepath.Base(path) == "subpath" || strings.HasSuffix(parent, "~local-volume")
	})
	if len(found) == 0 {
		return diagnosis{Name: "state files", Severity: severityOK, Found: "none was set aside as damaged"}
	}
	shown := strings.Join(found[:min(len(found), shownFiles)], ", ")
	if more := len(found) - shownFiles; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return diagnosis{Name: "state files", Severity: severityWarning, Found: fmt.Sprintf("%d set aside as damaged: %s", len(found), shown),
		Remedy: "check the disk; to restore a file, stop berth and put a backup in its place; else delete the damaged one"}
}
