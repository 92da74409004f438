package volume

import (
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Registry finds the plugin of a volume, or of a directory that a crashed process left. It is immutable.
type Registry struct {
	plugins []Plugin
	byDir   map[string]Plugin
}

// NewRegistry returns a Registry of the plugins. Two plugins of one name are an error.
func NewRegistry(plugins ...Plugin) (*Registry, error) {
	r := &Registry{plugins: plugins, byDir: make(map[string]Plugin, len(plugins))}
	for _, plugin := range plugins {
		dir := EscapeName(plugin.Name())
		if _, ok := r.byDir[dir]; ok {
			return nil, fmt.Errorf("register volume plugin %q: another plugin has this name", plugin.Name())
		}
		r.byDir[dir] = plugin
	}
	return r, nil
}

// Find returns the plugin for the volume. If there is none the error is an UnsupportedError that names the source.
func (r *Registry) Find(spec Spec) (Plugin, error) {
	for _, plugin := range r.plugins {
		if plugin.CanSupport(spec) {
			return plugin, nil
		}
	}
	return nil, Unsupported(spec, SourceField(spec), "this kind of volume is not supported by this kubelet")
}

// ByDirName returns the plugin whose volumes live in a directory of this name: POD/volumes/<name>.
func (r *Registry) ByDirName(name string) (Plugin, bool) {
	plugin, ok := r.byDir[name]
	return plugin, ok
}

// All returns the plugins in their order. The caller must not change the slice.
func (r *Registry) All() []Plugin { return r.plugins }

// EscapeName turns a plugin's name into the name of its directory: "kubernetes.io/empty-dir" becomes
// "kubernetes.io~empty-dir".
func EscapeName(name string) string { return strings.ReplaceAll(name, "/", "~") }

// PodsDir is the directory of the directories of all Pods, below the kubelet's root directory.
func PodsDir(root string) string { return filepath.Join(root, "pods") }

// PodDir is the directory of one Pod.
func PodDir(root string, uid types.UID) string { return filepath.Join(root, "pods", string(uid)) }

// PodVolumesDir is the directory of one Pod's volumes.
func PodVolumesDir(root string, uid types.UID) string {
	return filepath.Join(PodDir(root, uid), "volumes")
}

// Dir is the directory of one volume: POD/volumes/<escaped plugin name>/<volume>.
func Dir(root string, uid types.UID, plugin, volume string) string {
	return filepath.Join(PodVolumesDir(root, uid), EscapeName(plugin), volume)
}

// PodDevicesDir is the directory of the links to one Pod's block devices.
func PodDevicesDir(root string, uid types.UID) string {
	return filepath.Join(PodDir(root, uid), "volumeDevices")
}

// DeviceDir is the link to one block device: POD/volumeDevices/<escaped plugin name>/<volume>.
func DeviceDir(root string, uid types.UID, plugin, volume string) string {
	return filepath.Join(PodDevicesDir(root, uid), EscapeName(plugin), volume)
}

// IsBlock reports whether the volume is a block device rather than a file system.
func (s Spec) IsBlock() bool {
	return s.PV != nil && s.PV.Spec.VolumeMode != nil && *s.PV.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// CheckDirName rejects a volume name that would lead out of its plugin's directory. The API server accepts none, but
// a Pod from another source may have one.
func CheckDirName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("use volume name %q: it cannot be the name of a directory", name)
	}
	return nil
}

// SourceField is the JSON name of the source that the volume has set, such as "nfs", or "source" if none is.
func SourceField(spec Spec) string {
	if spec.PV != nil {
		return pvSourceField(&spec.PV.Spec.PersistentVolumeSource)
	}
	if spec.Volume == nil {
		return "source"
	}
	source := &spec.Volume.VolumeSource
	return firstSet([]sourceName{
		{source.HostPath != nil, "hostPath"}, {source.EmptyDir != nil, "emptyDir"},
		{source.GCEPersistentDisk != nil, "gcePersistentDisk"},
		{source.AWSElasticBlockStore != nil, "awsElasticBlockStore"}, {source.GitRepo != nil, "gitRepo"},
		{source.Secret != nil, "secret"}, {source.NFS != nil, "nfs"}, {source.ISCSI != nil, "iscsi"},
		{source.Glusterfs != nil, "glusterfs"}, {source.PersistentVolumeClaim != nil, "persistentVolumeClaim"},
		{source.RBD != nil, "rbd"}, {source.FlexVolume != nil, "flexVolume"}, {source.Cinder != nil, "cinder"},
		{source.CephFS != nil, "cephfs"}, {source.Flocker != nil, "flocker"},
		{source.DownwardAPI != nil, "downwardAPI"}, {source.FC != nil, "fc"}, {source.AzureFile != nil, "azureFile"},
		{source.ConfigMap != nil, "configMap"}, {source.VsphereVolume != nil, "vsphereVolume"},
		{source.Quobyte != nil, "quobyte"}, {source.AzureDisk != nil, "azureDisk"},
		{source.PhotonPersistentDisk != nil, "photonPersistentDisk"}, {source.Projected != nil, "projected"},
		{source.PortworxVolume != nil, "portworxVolume"}, {source.ScaleIO != nil, "scaleIO"},
		{source.StorageOS != nil, "storageos"}, {source.CSI != nil, "csi"}, {source.Ephemeral != nil, "ephemeral"},
		{source.Image != nil, "image"},
	})
}

func pvSourceField(source *corev1.PersistentVolumeSource) string {
	return firstSet([]sourceName{
		{source.HostPath != nil, "hostPath"}, {source.Local != nil, "local"}, {source.CSI != nil, "csi"},
		{source.NFS != nil, "nfs"}, {source.ISCSI != nil, "iscsi"}, {source.FC != nil, "fc"},
		{source.RBD != nil, "rbd"}, {source.CephFS != nil, "cephfs"}, {source.Cinder != nil, "cinder"},
		{source.GCEPersistentDisk != nil, "gcePersistentDisk"},
		{source.AWSElasticBlockStore != nil, "awsElasticBlockStore"}, {source.AzureFile != nil, "azureFile"},
		{source.AzureDisk != nil, "azureDisk"}, {source.VsphereVolume != nil, "vsphereVolume"},
		{source.FlexVolume != nil, "flexVolume"}, {source.PortworxVolume != nil, "portworxVolume"},
	})
}

type sourceName struct {
	set  bool
	name string
}

func firstSet(sources []sourceName) string {
	for _, source := range sources {
		if source.set {
			return source.name
		}
	}
	return "source"
}
