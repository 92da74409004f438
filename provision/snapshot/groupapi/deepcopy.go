package groupapi

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	value := *p
	return &value
}

// DeepCopy returns a copy that shares nothing with s.
func (s *VolumeGroupSnapshotStatus) DeepCopy() *VolumeGroupSnapshotStatus {
	if s == nil {
		return nil
	}
	return &VolumeGroupSnapshotStatus{
		BoundContentName: clone(s.BoundContentName), CreationTime: s.CreationTime.DeepCopy(), ReadyToUse: clone(s.ReadyToUse),
		Error: s.Error.DeepCopy(),
	}
}

// DeepCopy returns a copy that shares nothing with g.
func (g *VolumeGroupSnapshot) DeepCopy() *VolumeGroupSnapshot {
	return &VolumeGroupSnapshot{
		TypeMeta: g.TypeMeta, ObjectMeta: *g.ObjectMeta.DeepCopy(), Status: g.Status.DeepCopy(),
		Spec: VolumeGroupSnapshotSpec{
			ClassName: clone(g.Spec.ClassName),
			Source: VolumeGroupSnapshotSource{
				Selector: g.Spec.Source.Selector.DeepCopy(), ContentName: clone(g.Spec.Source.ContentName),
			},
		},
	}
}

// DeepCopyObject implements runtime.Object.
func (g *VolumeGroupSnapshot) DeepCopyObject() runtime.Object { return g.DeepCopy() }

// DeepCopy returns a copy that shares nothing with s.
func (s *VolumeGroupSnapshotContentStatus) DeepCopy() *VolumeGroupSnapshotContentStatus {
	if s == nil {
		return nil
	}
	out := &VolumeGroupSnapshotContentStatus{
		GroupHandle: clone(s.GroupHandle), CreationTime: s.CreationTime.DeepCopy(), ReadyToUse: clone(s.ReadyToUse),
		Error: s.Error.DeepCopy(), Snapshots: slices.Clone(s.Snapshots),
	}
	for i := range out.Snapshots {
		info := &out.Snapshots[i]
		info.CreationTime, info.ReadyToUse, info.RestoreSize = clone(info.CreationTime), clone(info.ReadyToUse), clone(info.RestoreSize)
	}
	return out
}

// DeepCopy returns a copy that shares nothing with c.
func (c *VolumeGroupSnapshotContent) DeepCopy() *VolumeGroupSnapshotContent {
	out := &VolumeGroupSnapshotContent{TypeMeta: c.TypeMeta, ObjectMeta: *c.ObjectMeta.DeepCopy(), Spec: c.Spec, Status: c.Status.DeepCopy()}
	out.Spec.ClassName = clone(c.Spec.ClassName)
	out.Spec.Source.VolumeHandles = slices.Clone(c.Spec.Source.VolumeHandles)
	if handles := clone(c.Spec.Source.Handles); handles != nil {
		handles.Snapshots = slices.Clone(handles.Snapshots)
		out.Spec.Source.Handles = handles
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (c *VolumeGroupSnapshotContent) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopy returns a copy that shares nothing with c.
func (c *VolumeGroupSnapshotClass) DeepCopy() *VolumeGroupSnapshotClass {
	return &VolumeGroupSnapshotClass{
		TypeMeta: c.TypeMeta, ObjectMeta: *c.ObjectMeta.DeepCopy(), Driver: c.Driver, Parameters: maps.Clone(c.Parameters),
		DeletionPolicy: c.DeletionPolicy,
	}
}

// DeepCopyObject implements runtime.Object.
func (c *VolumeGroupSnapshotClass) DeepCopyObject() runtime.Object { return c.DeepCopy() }
