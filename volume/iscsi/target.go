package iscsi

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
)

const (
	// defaultPort is the port of a portal that names none, defaultInterface the initiator's interface of a volume that names none.
	defaultPort      = 3260
	defaultInterface = "default"
	// maxLUN is the largest number of a disk that the API accepts.
	maxLUN = 255
)

// target is a disk of a target, as a volume names it.
type target struct {
	// name is the volume's name, for messages, and device its unique name on the node.
	name, device string
	iqn          string
	lun          int32
	// portals are where the target is reached; the first names the volume's directory.
	portals []netip.AddrPort
	// iface is the initiator's interface. If it is made for the volume, it is a copy of ifaceFrom, with the initiator's name.
	iface, ifaceFrom, initiator string
	fsType                      string
	mountOptions                []string
	readOnly, block             bool
	// chap says that sessions need the credentials in the Secret.
	chap                        bool
	secretName, secretNamespace string
}

// source is what a Pod's own volume or a PersistentVolume says. Of the Secret it has the name, and secretNamespace where it is.
type source struct {
	corev1.ISCSIVolumeSource
	secretNamespace string
}

// sourceOf returns the volume's source, nil if it is of another kind. podNamespace is where the Secret of a Pod's own volume is.
func sourceOf(spec volume.Spec, podNamespace string) *source {
	switch {
	case spec.PV != nil:
		if pv := spec.PV.Spec.ISCSI; pv != nil {
			s := &source{ISCSIVolumeSource: corev1.ISCSIVolumeSource{
				TargetPortal: pv.TargetPortal, IQN: pv.IQN, Lun: pv.Lun, ISCSIInterface: pv.ISCSIInterface, FSType: pv.FSType,
				ReadOnly: pv.ReadOnly, Portals: pv.Portals, SessionCHAPAuth: pv.SessionCHAPAuth, InitiatorName: pv.InitiatorName,
			}}
			if pv.SecretRef != nil {
				s.SecretRef, s.secretNamespace = &corev1.LocalObjectReference{Name: pv.SecretRef.Name}, pv.SecretRef.Namespace
			}
			return s
		}
	case spec.Volume != nil && spec.Volume.ISCSI != nil:
		return &source{ISCSIVolumeSource: *spec.Volume.ISCSI, secretNamespace: podNamespace}
	}
	return nil
}

// VolumeName identifies the volume among those of the plugin, as in node.status.volumesInUse. It is false for a volume of another kind.
func VolumeName(spec volume.Spec) (string, bool) {
	s := sourceOf(spec, "")
	if s == nil {
		return "", false
	}
	return fmt.Sprintf("%s:%s:%d", s.TargetPortal, s.IQN, s.Lun), true
}

var (
	// iqnFormat is the form of the names of targets and initiators (RFC 3720, 3.2.6). Neither they nor names of interfaces may lead out of a
	// directory or be an option of iscsiadm.
	iqnFormat       = regexp.MustCompile(`^(iqn|eui|naa)\.[^/\s]+$`)
	interfaceFormat = regexp.MustCompile(`^[^/\s-][^/\s]*$`)
	// zoneFormat is the form of the zones of IPv6 addresses, which are interfaces of the node: netip takes any text for one.
	zoneFormat = regexp.MustCompile(`^[0-9A-Za-z_.-]+$`)
)

// targetOf reads the volume. The error names the field that is wrong.
func targetOf(spec volume.Spec, podNamespace string) (*target, error) {
	s := sourceOf(spec, podNamespace)
	name, _ := VolumeName(spec)
	t := &target{
		name: spec.DirName(), device: deviceName(name), iqn: s.IQN, lun: s.Lun, iface: s.ISCSIInterface, initiator: ptr.Deref(s.InitiatorName, ""),
		fsType: s.FSType, readOnly: s.ReadOnly, block: spec.IsBlock(), chap: s.SessionCHAPAuth, secretNamespace: s.secretNamespace,
	}
	if s.SecretRef != nil {
		t.secretName = s.SecretRef.Name
	}
	if spec.PV != nil {
		t.mountOptions = spec.MountOptions()
		// The disk may be mounted by other nodes, too: nothing here may write to it, which a file system does as it is mounted.
		claim := spec.Volume != nil && spec.Volume.PersistentVolumeClaim != nil && spec.Volume.PersistentVolumeClaim.ReadOnly
		t.readOnly = t.readOnly || claim
	}
	if t.iface == "" {
		t.iface = defaultInterface
	}
	if err := t.validate(); err != nil {
		return nil, fmt.Errorf("iscsi volume %q: %w", t.name, err)
	}
	for _, portal := range append([]string{s.TargetPortal}, s.Portals...) {
		address, err := parsePortal(portal)
		if err != nil {
			return nil, fmt.Errorf("iscsi volume %q: %w", t.name, err)
		}
		if !slices.Contains(t.portals, address) {
			t.portals = append(t.portals, address)
		}
	}
	if t.initiator != "" {
		t.iface, t.ifaceFrom = t.portals[0].String()+":"+t.name, t.iface
	}
	return t, nil
}

func (t *target) validate() error {
	switch {
	case !iqnFormat.MatchString(t.iqn):
		return fmt.Errorf("iqn %q is no name of a target: want iqn.*, eui.* or naa.*", t.iqn)
	case t.lun < 0 || t.lun > maxLUN:
		return fmt.Errorf("lun %d is not between 0 and %d", t.lun, maxLUN)
	case !interfaceFormat.MatchString(t.iface):
		return fmt.Errorf("iscsiInterface %q is no name of an interface", t.iface)
	case t.initiator != "" && !iqnFormat.MatchString(t.initiator):
		return fmt.Errorf("initiatorName %q is no name of an initiator: want iqn.*, eui.* or naa.*", t.initiator)
	case t.chap && t.secretName == "":
		return fmt.Errorf("chapAuthSession needs a secretRef")
	}
	return nil
}

// parsePortal reads a portal: an IP address, in brackets if it is an IPv6 one with a port, and perhaps a port.
func parsePortal(portal string) (netip.AddrPort, error) {
	address, err := netip.ParseAddrPort(portal)
	if alone, aloneErr := netip.ParseAddr(strings.Trim(portal, "[]")); aloneErr == nil {
		address, err = netip.AddrPortFrom(alone, defaultPort), nil
	}
	if err != nil || !isPortal(address) {
		return netip.AddrPort{}, fmt.Errorf("portal %q is no IP address, with or without a port", portal)
	}
	return address, nil
}

// isPortal reports whether the portal has an address that may be a part of the names of directories.
func isPortal(address netip.AddrPort) bool {
	zone := address.Addr().Zone()
	return address.IsValid() && (zone == "" || zoneFormat.MatchString(zone))
}

func deviceName(volumeName string) string { return Name + "/" + volumeName }
