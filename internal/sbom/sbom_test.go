package sbom_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/sbom"
)

// TestDocumentOfAProgram lists what the program is made of that collects licences.
func TestDocumentOfAProgram(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "program")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../hack/notices").CombinedOutput()
	require.NoError(t, err, "%s", out)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "script"), []byte("#!/bin/sh\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"), data, 0o600), "not executable")

	programs, err := sbom.ReadPrograms(dir)
	require.NoError(t, err)
	require.Len(t, programs, 1)
	require.Equal(t, "sub/program", programs[0].Name)
	modules := sbom.Modules(programs)
	at := slices.IndexFunc(modules, func(m sbom.Module) bool { return m.Path == "github.com/google/licensecheck" })
	require.GreaterOrEqual(t, at, 0, "%v", modules)

	options := sbom.Options{
		Name: "berth", Version: "1.2.3", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Licenses: map[sbom.Module]string{modules[at]: "BSD-3-Clause"},
	}
	document := sbom.New(programs, options)
	require.Equal(t, document, sbom.New(programs, options), "the same programs have the same document")
	require.Equal(t, "2026-01-02T03:04:05Z", document.CreationInfo.Created)

	ids := map[string]bool{"SPDXRef-DOCUMENT": true}
	for _, item := range document.Packages {
		require.Regexp(t, regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`), item.SPDXID)
		require.False(t, ids[item.SPDXID], "%s twice", item.SPDXID)
		ids[item.SPDXID] = true
		if item.Name == "github.com/google/licensecheck" {
			require.Equal(t, "BSD-3-Clause", item.LicenseDeclared)
			require.Equal(t, "pkg:golang/github.com/google/licensecheck@"+item.VersionInfo, item.ExternalRefs[0].Locator)
		}
	}
	for _, relation := range document.Relationships {
		require.True(t, ids[relation.Element] && ids[relation.Related], "%v", relation)
	}
	text, err := json.Marshal(document)
	require.NoError(t, err)
	for _, field := range []string{`"spdxVersion":"SPDX-2.3"`, `"dataLicense":"CC0-1.0"`, `"documentNamespace":"https://`, `"name":"stdlib"`} {
		require.Contains(t, string(text), field)
	}
}

func TestDirectoryWithoutPrograms(t *testing.T) {
	_, err := sbom.ReadPrograms(t.TempDir())
	require.ErrorContains(t, err, "there are none")
}
