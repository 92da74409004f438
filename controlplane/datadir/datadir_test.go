package datadir_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/datadir"
)

var own = datadir.Versions{Format: 2, Kubernetes: "1.36", Etcd: "3.6.8"}

func TestSecondOwnerIsRefusedByName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first, err := datadir.Acquire(dir)
	require.NoError(t, err)
	_, err = datadir.Acquire(dir)
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))

	require.NoError(t, first.Release())
	again, err := datadir.Acquire(dir)
	require.NoError(t, err)
	require.NoError(t, again.Release())
}

func TestCheckVersion(t *testing.T) {
	tests := []struct {
		name   string
		have   string // "": no file
		want   string // "": may open
		former int    // the format of what may be opened
	}{
		{"new", "", "", 0},
		{"the same", `{"format":2,"kubernetes":"1.36","etcd":"3.6.8"}`, "", 2},
		{"older", `{"format":1,"kubernetes":"1.35","etcd":"3.5.9"}`, "", 1},
		{"newer patch of etcd", `{"format":2,"kubernetes":"1.36","etcd":"3.6.99"}`, "", 2},
		{"newer format", `{"format":3,"kubernetes":"1.36","etcd":"3.6.8"}`, "format 3", 0},
		{"newer Kubernetes", `{"format":2,"kubernetes":"1.37","etcd":"3.6.8"}`, "Kubernetes 1.37", 0},
		{"newer etcd", `{"format":2,"kubernetes":"1.36","etcd":"3.7.0"}`, "etcd 3.7.0", 0},
		{"newer major etcd", `{"format":2,"kubernetes":"1.36","etcd":"4.0.0"}`, "etcd 4.0.0", 0},
		{"not a version", `{"format":2,"kubernetes":"new","etcd":"3.6.8"}`, "", 0},
		{"damaged", `{"form`, "", 0},
		{"foreign", `{"a":1}`, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "controlplane.json")
			if tt.have != "" {
				require.NoError(t, os.WriteFile(path, []byte(tt.have), 0o600))
			}
			former, err := datadir.CheckVersion(dir, own)
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, tt.have, string(data), "a refusal changes nothing")
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.former, former.Format)
			require.NoError(t, datadir.RecordVersion(dir, own))
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.JSONEq(t, `{"format":2,"kubernetes":"1.36","etcd":"3.6.8"}`, string(data))
		})
	}
}
