package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/volume/mounts"
)

// dataFile is the file that records a stage or publish call for later processes.
const dataFile = "vol_data.json"

// oldTemporaryFile is the file in which earlier versions wrote the data file; a crash may have left one.
const oldTemporaryFile = dataFile + ".new"

const (
	lifecyclePersistent = "Persistent"
	lifecycleEphemeral  = "Ephemeral"
)

// dataLimit is the largest size of a data file, in bytes.
const dataLimit = 1 << 20

// errNoData means that there is no readable data file.
var errNoData = errors.New("no volume data")

// volumeData is the content of a data file. The field names are those of Kubernetes' kubelet, except VolumeMode.
type volumeData struct {
	SpecVolID           string `json:"specVolID"`
	VolumeHandle        string `json:"volumeHandle"`
	DriverName          string `json:"driverName"`
	NodeName            string `json:"nodeName"`
	AttachmentID        string `json:"attachmentID,omitempty"` // empty if the volume needs no attachment
	VolumeLifecycleMode string `json:"volumeLifecycleMode"`
	VolumeMode          string `json:"volumeMode,omitempty"`          // Block, or empty
	SELinuxMountContext string `json:"seLinuxMountContext,omitempty"` // the label that it is mounted with
}

func (p *Plugin) dataOf(s *source, attach bool) *volumeData {
	data := &volumeData{
		SpecVolID: s.name, VolumeHandle: s.handle, DriverName: s.driver, NodeName: p.config.NodeName,
		VolumeLifecycleMode: lifecyclePersistent,
	}
	if s.ephemeral {
		data.VolumeLifecycleMode = lifecycleEphemeral
	}
	if attach {
		data.AttachmentID = AttachmentName(s.handle, s.driver, p.config.NodeName)
	}
	if s.block {
		data.VolumeMode = "Block"
	}
	return data
}

// saveData writes the data file into dir, which must exist. It reports whether there was a readable one before, which
// is kept if it has the same content. A damaged one is set aside. A crash leaves the old file or the new one.
func (p *Plugin) saveData(dir string, data *volumeData) (before bool, err error) {
	old, err := loadData(dir)
	switch {
	case err == nil && *old == *data:
		return true, nil
	case err == nil:
		before = true
	case !errors.Is(err, errNoData):
		return false, err
	case err != errNoData: // else there is none
		statefile.SetAside(p.deps.Logger, filepath.Join(dir, dataFile), err, "the file is written again")
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return before, fmt.Errorf("save volume data of %q: %w", data.SpecVolID, err)
	}
	if err := atomicfile.Write(filepath.Join(dir, dataFile), raw, 0o600); err != nil {
		return before, fmt.Errorf("save volume data of %q: %w", data.SpecVolID, err)
	}
	return before, nil
}

// loadData reads the data file in dir. For a missing or unreadable one it returns an error that wraps errNoData.
func loadData(dir string) (*volumeData, error) {
	raw, err := statefile.Read(filepath.Join(dir, dataFile), dataLimit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoData
	}
	if errors.Is(err, statefile.ErrDamaged) {
		return nil, fmt.Errorf("read volume data: %w: %w", errNoData, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read volume data: %w", err)
	}
	data := &volumeData{}
	if err := json.Unmarshal(raw, data); err != nil {
		return nil, fmt.Errorf("read volume data in %q: %w: %w", dir, errNoData, err)
	}
	if CheckDriverName(data.DriverName) != nil || data.VolumeHandle == "" {
		return nil, fmt.Errorf("read volume data in %q: %w: driver or handle is missing", dir, errNoData)
	}
	return data, nil
}

// removeData removes the data file, and what an interrupted saveData left. A missing file is fine.
func removeData(dir string) error {
	if err := atomicfile.Clean(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove volume data: %w", err)
	}
	asides, err := statefile.Asides(filepath.Join(dir, dataFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove volume data: %w", err)
	}
	for _, aside := range asides { // the volume is no longer in use
		if err := mounts.RemoveTree(aside); err != nil {
			return fmt.Errorf("remove damaged volume data: %w", err)
		}
	}
	for _, name := range []string{oldTemporaryFile, dataFile} {
		if err := mounts.RemoveTree(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove volume data: %w", err)
		}
	}
	return nil
}

// deviceName returns the volume's unique name.
func deviceName(driver, handle string) string { return Name + "/" + driver + "^" + handle }

// splitDeviceName is the inverse of deviceName.
func splitDeviceName(name string) (driver, handle string, err error) {
	driver, handle, ok := strings.Cut(strings.TrimPrefix(name, Name+"/"), "^")
	if !ok || CheckDriverName(driver) != nil || handle == "" {
		return "", "", fmt.Errorf("read device name %q: want %s/DRIVER^HANDLE", name, Name)
	}
	return driver, handle, nil
}

// deviceDir is the directory of the files of a device.
func (p *Plugin) deviceDir(driver, handle string) string {
	return filepath.Join(p.dir(), driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))))
}

// stagingPath is the staging target path of a device.
func (p *Plugin) stagingPath(data *volumeData) string {
	if data.VolumeMode != "" {
		return filepath.Join(p.blockDir(), "staging", data.SpecVolID)
	}
	return filepath.Join(p.deviceDir(data.DriverName, data.VolumeHandle), "globalmount")
}

// blockDir is the directory of all files of block devices.
func (p *Plugin) blockDir() string { return filepath.Join(p.dir(), "volumeDevices") }

// AttachmentName returns the name of the VolumeAttachment object for a volume and a node. The attach/detach controller
// and the kubelet use the same name.
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// ephemeralHandle returns the volume handle of an inline volume.
func ephemeralHandle(podUID, volumeName string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(podUID+volumeName)))
}
