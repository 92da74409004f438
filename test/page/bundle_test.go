package page

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the bundle of the page's script")

// TestTheBundleIsMadeOfItsSource fails if page/static/app.js is not what esbuild makes of page/script. To write it: make page-script.
func TestTheBundleIsMadeOfItsSource(t *testing.T) {
	dir, err := filepath.Abs("../../page/script")
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := Bundle(dir)
	if err != nil {
		t.Fatal(err)
	}
	const file = "../../page/static/app.js"
	if *update {
		if err := os.WriteFile(file, bundle, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bundle, committed) {
		t.Fatalf("%s differs from its source: run make page-script", file)
	}
	if len(bundle) > 8<<10 {
		t.Fatalf("the script has %d bytes: keep it under 8 KiB", len(bundle))
	}
}
