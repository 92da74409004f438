package iscsi

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
)

// requireBelow requires that the directories of a disk are where the plugin has them, and have names that no program takes for an option.
func requireBelow(t *testing.T, r *record) {
	t.Helper()
	l := layout("/plugin")
	for dir, parent := range map[string]string{l.stagingDir(r): "/plugin", l.pinsDir(r): "/plugin/volumeDevices"} {
		below, found := strings.CutPrefix(dir, parent+"/iface-")
		require.True(t, found, dir)
		require.Equal(t, 1, strings.Count(below, "/"), dir)
	}
	for _, argument := range nodeArguments(r.IQN, r.Interface, r.Portals[0])[2:] {
		if argument != "-T" && argument != "-p" && argument != "-I" {
			require.False(t, strings.HasPrefix(argument, "-"), argument)
		}
	}
}

// FuzzTarget reads the volume of a Pod: it is refused, or what the node makes for it is in the plugin's directory and has a record that is read
// as it was.
func FuzzTarget(f *testing.F) {
	f.Add("10.0.0.1", "iqn.2026-01.example:disk", "default", "", int32(0))
	f.Add("[fd00::1]:3260", "eui.0123", "eth0", "iqn.2026-01.example:node", int32(255))
	f.Add("fe80::1%/../../../etc", "naa.1", "", "", int32(1))
	f.Add("fe80::1%eth0", "iqn...", "..", "iqn.x", int32(-1))
	f.Add("fe80::1%br-lan", "iqn.x-lun-1", "default", "", int32(1))
	f.Add("10.0.0.1", "iqn.]a", "default", "", int32(0))
	f.Fuzz(func(t *testing.T, portal, iqn, iface, initiator string, lun int32) {
		if !utf8.ValidString(portal) || !utf8.ValidString(iqn+iface+initiator) {
			return // the API has no such strings
		}
		spec := volume.Spec{Volume: &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{
			TargetPortal: portal, IQN: iqn, ISCSIInterface: iface, Lun: lun,
		}}}}
		if initiator != "" {
			spec.Volume.ISCSI.InitiatorName = ptr.To(initiator)
		}
		target, err := targetOf(spec, "default")
		if err != nil {
			return
		}
		made := recordOf(target, "")
		requireBelow(t, made)
		records := store{dir: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
		require.NoError(t, records.save(made))
		found, err := records.load(made.Device)
		require.NoError(t, err)
		require.Equal(t, made, found)
		if initiator == "" {
			named := recordOfDir(made.dirName())
			require.NotNil(t, named, "%q", made.dirName())
			require.Equal(t, made.dirName(), named.dirName())
		}
	})
}

// FuzzRecord reads arbitrary records, and names of directories, of disks: what is not set aside is in the plugin's directory.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"device":"kubernetes.io/iscsi/10.0.0.1:iqn.x:0","iqn":"iqn.x","lun":0,"interface":"default","portals":["10.0.0.1:3260"]}`),
		"iface-default/10.0.0.1:3260-iqn.x-lun-0")
	f.Add([]byte(`{"device":"d","iqn":"iqn.x","interface":"eth0","portals":["[fe80::1%/../..]:1",""]}`), "iface-../[fe80::1%a]:1-iqn.-lun-1-lun-2")
	f.Add([]byte(`{"portals":[null]}`), "iface-x/-lun-")
	f.Fuzz(func(t *testing.T, content []byte, dir string) {
		if named := recordOfDir(dir); named != nil {
			requireBelow(t, named)
		}
		records := store{dir: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
		r := &record{}
		device := "d"
		if r.read(content) == nil {
			device = r.Device // so that the file has the name that goes with it
		}
		require.NoError(t, os.WriteFile(records.file(device), content, 0o600))
		found, err := records.load(device)
		require.NoError(t, err)
		if found != nil {
			requireBelow(t, found)
			return
		}
		aside, err := filepath.Glob(records.file(device) + "*")
		require.NoError(t, err)
		require.NotEmpty(t, aside, "a damaged record is kept")
	})
}
