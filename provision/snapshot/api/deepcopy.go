package api

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime"
)

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	value := *p
	return &value
}

// DeepCopy returns a copy that shares nothing with e.
func (e *Error) DeepCopy() *Error {
	if e == nil {
		return nil
	}
	return &Error{Time: e.Time.DeepCopy(), Message: clone(e.Message)}
}

// DeepCopy returns a copy that shares nothing with s.
func (s *VolumeSnapshotStatus) DeepCopy() *VolumeSnapshotStatus {
	if s == nil {
		return nil
	}
	out := &VolumeSnapshotStatus{
		BoundContentName: clone(s.BoundContentName), CreationTime: s.CreationTime.DeepCopy(), ReadyToUse: clone(s.ReadyToUse),
		Error: s.Error.DeepCopy(), GroupName: clone(s.GroupName),
	}
	if s.RestoreSize != nil {
		size := s.RestoreSize.DeepCopy()
		out.RestoreSize = &size
	}
	return out
}

// DeepCopy returns a copy that shares nothing with s.
func (s *VolumeSnapshot) DeepCopy() *VolumeSnapshot {
	return &VolumeSnapshot{
		TypeMeta: s.TypeMeta, ObjectMeta: *s.ObjectMeta.DeepCopy(), Status: s.Status.DeepCopy(),
		Spec: VolumeSnapshotSpec{
			ClassName: clone(s.Spec.ClassName),
			Source:    VolumeSnapshotSource{ClaimName: clone(s.Spec.Source.ClaimName), ContentName: clone(s.Spec.Source.ContentName)},
		},
	}
}

// DeepCopyObject implements runtime.Object.
func (s *VolumeSnapshot) DeepCopyObject() runtime.Object { return s.DeepCopy() }

// DeepCopy returns a copy that shares nothing with s.
func (s *VolumeSnapshotContentStatus) DeepCopy() *VolumeSnapshotContentStatus {
	if s == nil {
		return nil
	}
	return &VolumeSnapshotContentStatus{
		SnapshotHandle: clone(s.SnapshotHandle), CreationTime: clone(s.CreationTime), RestoreSize: clone(s.RestoreSize),
		ReadyToUse: clone(s.ReadyToUse), Error: s.Error.DeepCopy(), GroupHandle: clone(s.GroupHandle),
	}
}

// DeepCopy returns a copy that shares nothing with c.
func (c *VolumeSnapshotContent) DeepCopy() *VolumeSnapshotContent {
	out := &VolumeSnapshotContent{TypeMeta: c.TypeMeta, ObjectMeta: *c.ObjectMeta.DeepCopy(), Spec: c.Spec, Status: c.Status.DeepCopy()}
	out.Spec.ClassName, out.Spec.SourceVolumeMode = clone(c.Spec.ClassName), clone(c.Spec.SourceVolumeMode)
	out.Spec.Source = VolumeSnapshotContentSource{
		VolumeHandle: clone(c.Spec.Source.VolumeHandle), SnapshotHandle: clone(c.Spec.Source.SnapshotHandle),
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (c *VolumeSnapshotContent) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopy returns a copy that shares nothing with c.
func (c *VolumeSnapshotClass) DeepCopy() *VolumeSnapshotClass {
	return &VolumeSnapshotClass{
		TypeMeta: c.TypeMeta, ObjectMeta: *c.ObjectMeta.DeepCopy(), Driver: c.Driver, Parameters: maps.Clone(c.Parameters),
		DeletionPolicy: c.DeletionPolicy,
	}
}

// DeepCopyObject implements runtime.Object.
func (c *VolumeSnapshotClass) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopyObject implements runtime.Object.
func (l *List[T]) DeepCopyObject() runtime.Object {
	out := &List[T]{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		if object, ok := any(&l.Items[i]).(interface{ DeepCopy() *T }); ok {
			out.Items = append(out.Items, *object.DeepCopy())
		}
	}
	return out
}
