package iscsi

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/internal/globs"
)

// layout is the plugin's directory, and knows where its files are (see the package).
type layout string

func (l layout) recordsDir() string { return filepath.Join(string(l), "records") }

// stagingDir is where the disk's file system is mounted, pinsDir the directory of the pins of a disk that Pods use as a device.
func (l layout) stagingDir(r *record) string { return filepath.Join(string(l), r.dirName()) }
func (l layout) pinsDir(r *record) string {
	return filepath.Join(string(l), "volumeDevices", r.dirName())
}
func (l layout) pin(r *record, podUID string) string { return filepath.Join(l.pinsDir(r), podUID) }

// stagingDirs lists the directories on which disks may be mounted, by their names below the plugin's directory.
func (l layout) stagingDirs() ([]string, error) {
	dirs, err := filepath.Glob(filepath.Join(globs.Escape(string(l)), "iface-*", "*-lun-*"))
	if err != nil {
		return nil, fmt.Errorf("list iscsi volumes: %w", err)
	}
	for i, dir := range dirs {
		dirs[i] = strings.TrimPrefix(dir, string(l)+"/")
	}
	return dirs, nil
}

// dirName is the name of the volume's directories: INTERFACE-DIRECTORY/PORTAL-IQN-lun-LUN.
func dirName(iface string, portal netip.AddrPort, iqn string, lun int32) string {
	return filepath.Join("iface-"+iface, portal.String()+"-"+iqn+"-lun-"+strconv.Itoa(int(lun)))
}

// recordOfDir reads what the name of a disk's directory says of it; nil if it says nothing.
func recordOfDir(name string) *record {
	iface, rest := filepath.Split(name)
	iface = strings.TrimPrefix(filepath.Clean(iface), "iface-")
	at := strings.LastIndex(rest, "-lun-")
	if at < 0 {
		return nil
	}
	lun, err := strconv.ParseInt(rest[at+len("-lun-"):], 10, 32)
	if err != nil {
		return nil
	}
	end := 0
	if strings.HasPrefix(rest, "[") { // the zone of an IPv6 address may have a dash
		end = max(strings.IndexByte(rest[:at], ']'), 0)
	}
	_, iqn, ok := strings.Cut(rest[end:at], "-")
	if !ok {
		return nil
	}
	address := strings.TrimSuffix(rest[:at], "-"+iqn)
	portal, err := netip.ParseAddrPort(address)
	if err != nil || !isPortal(portal) || !iqnFormat.MatchString(iqn) || !interfaceFormat.MatchString(iface) {
		return nil
	}
	return &record{
		Device: deviceName(fmt.Sprintf("%s:%s:%d", portal, iqn, lun)), Volume: rest, IQN: iqn, LUN: int32(lun), Interface: iface,
		Portals: []netip.AddrPort{portal},
	}
}
