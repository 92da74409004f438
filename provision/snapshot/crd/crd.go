// Package crd has the CustomResourceDefinitions of volume snapshots and of groups of them, as external-snapshotter v8.6.0 publishes them.
package crd

import (
	"embed"
	"fmt"
	"io/fs"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Version is the release of external-snapshotter that the definitions are from.
const Version = "v8.6.0"

//go:embed v8.6.0
var files embed.FS

// Definitions returns the CustomResourceDefinitions without status.
func Definitions() ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(files, Version+"/*.yaml")
	if err != nil {
		return nil, err
	}
	var definitions []*unstructured.Unstructured
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &definition.Object); err != nil {
			return nil, fmt.Errorf("decode %s: %w", name, err)
		}
		unstructured.RemoveNestedField(definition.Object, "status")
		definitions = append(definitions, definition)
	}
	return definitions, nil
}

// Names returns the names of the CustomResourceDefinitions.
func Names() []string {
	const single, group = ".snapshot.storage.k8s.io", ".groupsnapshot.storage.k8s.io"
	return []string{
		"volumesnapshotclasses" + single, "volumesnapshotcontents" + single, "volumesnapshots" + single,
		"volumegroupsnapshotclasses" + group, "volumegroupsnapshotcontents" + group, "volumegroupsnapshots" + group,
	}
}
