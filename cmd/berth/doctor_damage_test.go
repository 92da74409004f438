package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up"
)

func TestDoctorReportsDamagedFiles(t *testing.T) {
	var layout up.Layout
	layout.DataDir = t.TempDir()
	require.Equal(t, severityOK, checkDamagedFiles(layout).Severity)
	require.NoError(t, os.MkdirAll(filepath.Join(layout.DataDir, "pki"), 0o700))
	path := filepath.Join(layout.DataDir, "pki", "ca.crt.damaged")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	foreign := filepath.Join(layout.ContainerdRoot(), "x.damaged")
	require.NoError(t, os.MkdirAll(foreign, 0o700))
	d := checkDamagedFiles(layout)
	require.Equal(t, severityWarning, d.Severity)
	require.Contains(t, d.Found, "1 set aside as damaged: "+path)
	require.NotEmpty(t, d.Remedy)
}
