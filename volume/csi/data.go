package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// dataFile is the file by which a later process knows what was done.
const dataFile = "vol_data.json"

const (
	lifecyclePersistent = "Persistent"
	lifecycleEphemeral  = "Ephemeral"
)

// errNoData says that there is no readable data file.
var errNoData = errors.New("no volume data")

// volumeData is the content of a data file. The field names are upstream's, except the last.
type volumeData struct {
	SpecVolID           string `json:"specVolID"`
	VolumeHandle        string `json:"volumeHandle"`
	DriverName          string `json:"driverName"`
	NodeName            string `json:"nodeName"`
	AttachmentID        string `json:"attachmentID,omitempty"` // empty if the volume needs no attachment
	VolumeLifecycleMode string `json:"volumeLifecycleMode"`
	VolumeMode          string `json:"volumeMode,omitempty"` // Block, or empty
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

// saveData writes the data file into dir, which must be there. It reports whether there was a readable one before. A
// process that dies leaves the old file or the new one; after the machine died there may be neither, but then no
// mount is left either.
func saveData(dir string, data *volumeData) (before bool, err error) {
	switch _, err := loadData(dir); {
	case err == nil:
		before = true
	case !errors.Is(err, errNoData):
		return false, err
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return before, fmt.Errorf("save volume data of %q: %w", data.SpecVolID, err)
	}
	path := filepath.Join(dir, dataFile)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return before, fmt.Errorf("save volume data of %q: %w", data.SpecVolID, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return before, fmt.Errorf("save volume data of %q: %w", data.SpecVolID, err)
	}
	return before, nil
}

// loadData reads the data file in dir. A missing or unreadable one gives an error that wraps errNoData.
func loadData(dir string) (*volumeData, error) {
	raw, err := os.ReadFile(filepath.Join(dir, dataFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNoData
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

// removeData removes the data file. A missing one is fine.
func removeData(dir string) error {
	for _, name := range []string{dataFile + ".new", dataFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove volume data: %w", err)
		}
	}
	return nil
}

// deviceName is the volume's unique name.
func deviceName(driver, handle string) string { return Name + "/" + driver + "^" + handle }

// splitDeviceName undoes deviceName.
func splitDeviceName(name string) (driver, handle string, err error) {
	driver, handle, ok := strings.Cut(strings.TrimPrefix(name, Name+"/"), "^")
	if !ok || CheckDriverName(driver) != nil || handle == "" {
		return "", "", fmt.Errorf("read device name %q: want %s/DRIVER^HANDLE", name, Name)
	}
	return driver, handle, nil
}

// deviceDir is where the plugin keeps what belongs to a device.
func (p *Plugin) deviceDir(driver, handle string) string {
	return filepath.Join(p.dir(), driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))))
}

// stagingPath is where the driver is to stage a device.
func (p *Plugin) stagingPath(data *volumeData) string {
	if data.VolumeMode != "" {
		return filepath.Join(p.blockDir(), "staging", data.SpecVolID)
	}
	return filepath.Join(p.deviceDir(data.DriverName, data.VolumeHandle), "globalmount")
}

// blockDir is where everything about block devices lies.
func (p *Plugin) blockDir() string { return filepath.Join(p.dir(), "volumeDevices") }

// AttachmentName is the name of the VolumeAttachment object for a volume and a node. The attach/detach controller and
// the node agent must agree on it.
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// ephemeralHandle is the id of an inline volume.
func ephemeralHandle(podUID, volumeName string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(podUID+volumeName)))
}
