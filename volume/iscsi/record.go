package iscsi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// recordLimit is the largest size of a record, in bytes.
const recordLimit = 1 << 20

// record says what Unstage has to undo. It is written before Stage changes anything, and removed last.
type record struct {
	Device    string           `json:"device"`
	Volume    string           `json:"volume"`
	IQN       string           `json:"iqn"`
	LUN       int32            `json:"lun"`
	Interface string           `json:"interface"`
	Portals   []netip.AddrPort `json:"portals"`
	Block     bool             `json:"block,omitempty"`
	Label     string           `json:"seLinuxLabel,omitempty"`
	// Sessions are the portals whose session the kubelet made, NodeRecords those for which it gave iscsiadm a record, and OwnInterface says
	// that it made the interface.
	Sessions     []netip.AddrPort `json:"sessions,omitempty"`
	NodeRecords  []netip.AddrPort `json:"nodeRecords,omitempty"`
	OwnInterface bool             `json:"ownInterface,omitempty"`
}

func recordOf(t *target, label string) *record {
	return &record{
		Device: t.device, Volume: t.name, IQN: t.iqn, LUN: t.lun, Interface: t.iface, Portals: t.portals, Block: t.block, Label: label,
		OwnInterface: t.ifaceFrom != "",
	}
}

func (r *record) dirName() string { return dirName(r.Interface, r.Portals[0], r.IQN, r.LUN) }

// sharesSessions reports whether the two disks are reached by the same sessions.
func (r *record) sharesSessions(other *record) bool {
	return r.IQN == other.IQN && r.Interface == other.Interface
}

// inherit makes the sessions that the kubelet made for another disk of the target the record's own. It reports whether it changed.
func (r *record) inherit(other *record) bool {
	before := len(r.Sessions) + len(r.NodeRecords)
	r.Sessions = union(r.Sessions, other.Sessions)
	r.NodeRecords = union(r.NodeRecords, other.NodeRecords)
	return len(r.Sessions)+len(r.NodeRecords) != before
}

func union(portals, more []netip.AddrPort) []netip.AddrPort {
	for _, portal := range more {
		if !slices.Contains(portals, portal) {
			portals = append(portals, portal)
		}
	}
	return portals
}

// store has the records of all disks in a directory. Whoever writes the record of a disk has the lock of its target.
type store struct {
	dir    string
	logger *slog.Logger
}

func (s store) file(device string) string {
	return filepath.Join(s.dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(device))))
}

func (s store) save(r *record) error {
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return fmt.Errorf("create directory of iscsi volumes: %w", err)
	}
	raw, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(s.file(r.Device), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save the record of iscsi volume %q: %w", r.Volume, err)
	}
	return nil
}

// load reads the record of a device. It is nil if there is none; a damaged one is set aside.
func (s store) load(device string) (*record, error) { return s.loadFile(s.file(device)) }

func (s store) loadFile(file string) (*record, error) {
	raw, err := statefile.Read(file, recordLimit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	r := &record{}
	damage := err
	switch {
	case err == nil:
		damage = r.read(raw)
	case !errors.Is(err, statefile.ErrDamaged):
		return nil, fmt.Errorf("read the record of an iscsi volume: %w", err)
	}
	if damage == nil && s.file(r.Device) != file {
		damage = fmt.Errorf("it is of the volume %q", r.Device)
	}
	if damage != nil {
		statefile.SetAside(s.logger, file, damage,
			"the volume's sessions stay when no Pod needs it any more: `iscsiadm -m node --logout` ends them")
		return nil, nil
	}
	return r, nil
}

func (r *record) read(raw []byte) error {
	if err := json.Unmarshal(raw, r); err != nil {
		return err
	}
	if r.Device == "" || len(r.Portals) == 0 || !iqnFormat.MatchString(r.IQN) || !interfaceFormat.MatchString(r.Interface) {
		return errors.New("the name of the disk, the target, its interface or its portals are missing")
	}
	for _, portal := range slices.Concat(r.Portals, r.Sessions, r.NodeRecords) {
		if !isPortal(portal) {
			return fmt.Errorf("%s is no portal", portal)
		}
	}
	return nil
}

// list lists the records of all disks. One that cannot be read now is logged, and does not hide the others.
func (s store) list() ([]*record, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list iscsi volumes: %w", err)
	}
	var all []*record
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".json" {
			continue
		}
		r, err := s.loadFile(filepath.Join(s.dir, entry.Name()))
		if err != nil {
			s.logger.Error("cannot read the record of an iscsi volume; the others are not affected", "file", entry.Name(), "error", err)
			continue
		}
		if r != nil {
			all = append(all, r)
		}
	}
	return all, nil
}

// sharing lists the records of other disks that are reached by the same sessions.
func (s store) sharing(r *record) ([]*record, error) {
	all, err := s.list()
	return slices.DeleteFunc(all, func(other *record) bool { return other.Device == r.Device || !other.sharesSessions(r) }), err
}

func (s store) remove(device string) error {
	if err := os.Remove(s.file(device)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
