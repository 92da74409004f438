package csidriver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// groupPrefix begins the ids of group snapshots. A group has no files of its own: each of its snapshots records the group.
const groupPrefix = "group-"

var groupPattern = regexp.MustCompile(`^group-[0-9a-f]{40}$`)

// groupID is the id of the group snapshot of that name, memberName the name of its snapshot of a volume.
func groupID(name string) string { return groupPrefix + hash(name) }

func memberName(group, volume string) string { return group + "/" + volume }

// VolumeGroupSnapshotClass returns the driver's default class for group snapshots. The caller owns it.
func VolumeGroupSnapshotClass() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotClass",
		"metadata": map[string]any{
			"name": ClassName, "annotations": map[string]any{"groupsnapshot.storage.kubernetes.io/is-default-class": "true"},
		},
		"driver": Name, "deletionPolicy": "Delete",
	}}
}

// GroupControllerGetCapabilities implements csi.GroupControllerServer.
func (d *Driver) GroupControllerGetCapabilities(
	context.Context, *csi.GroupControllerGetCapabilitiesRequest,
) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

// checkGroupParameters rejects the parameters of a VolumeGroupSnapshotClass but deletionPolicy, by which upstream's storage suite repeats the
// class's field of that name. The snapshot controller honours the field; there is nothing for a driver to do.
func checkGroupParameters(parameters map[string]string) error {
	rest := maps.Clone(parameters)
	switch policy := rest["deletionPolicy"]; policy {
	case "", "Delete", "Retain":
		delete(rest, "deletionPolicy")
	default:
		return status.Errorf(codes.InvalidArgument, "parameters: deletionPolicy is %q, only Delete and Retain are known", policy)
	}
	return checkSnapshotParameters(rest)
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerServer. All mounted filesystems of the group are frozen before the first
// image is copied, and until the last one is, so that the snapshots are of one moment.
func (d *Driver) CreateVolumeGroupSnapshot(
	ctx context.Context, req *csi.CreateVolumeGroupSnapshotRequest,
) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	name, sources := req.GetName(), slices.Compact(slices.Sorted(slices.Values(req.GetSourceVolumeIds())))
	switch {
	case name == "":
		return nil, missingField("name")
	case len(sources) == 0:
		return nil, missingField("source_volume_ids")
	}
	if err := checkGroupParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	group := groupID(name)
	ids := append([]string{group}, sources...)
	for _, source := range sources {
		if !isVolumeID(source) {
			return nil, status.Errorf(codes.NotFound, "source_volume_ids: volume %q %v", source, errNotFound)
		}
		ids = append(ids, snapshotID(memberName(name, source)))
	}
	return run(ctx, d.inflight, ids, func(ctx context.Context) (*csi.CreateVolumeGroupSnapshotResponse, error) {
		members, err := d.members(group)
		if err != nil {
			return nil, grpcError(err)
		}
		if isComplete(members) {
			if taken := members[0].GroupSources; !slices.Equal(taken, sources) {
				return nil, status.Errorf(codes.AlreadyExists, "group snapshot %q exists of volumes %q, not of %q", name, taken, sources)
			}
			return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: describeGroup(group, members)}, nil
		}
		if err := d.removeAll(members); err != nil { // of a call that was interrupted
			return nil, grpcError(err)
		}
		if members, err = d.snapshotGroup(ctx, group, name, sources); err != nil {
			return nil, grpcError(err)
		}
		d.logger.Info("created group snapshot", "groupSnapshot", group, "name", name, "volumes", sources)
		return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: describeGroup(group, members)}, nil
	})
}

// snapshotGroup takes the snapshots of a group, or none.
func (d *Driver) snapshotGroup(ctx context.Context, group, name string, sources []string) (members []*item, err error) {
	volumes := make([]*item, len(sources))
	for i, source := range sources {
		if volumes[i], err = d.volume(source); err != nil {
			return nil, err
		}
	}
	release, err := d.reserveCopies(name, volumes)
	if err != nil {
		return nil, err
	}
	defer release()
	raw := make([]bool, len(volumes))
	for i, volume := range volumes {
		var thaw func() error
		if thaw, raw[i], err = d.quiesceVolume(volume); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, thaw()) }()
	}
	m := metadata{Group: group, GroupSources: sources, Created: time.Now().UTC()}
	for i, volume := range volumes {
		m.Name, m.Source = memberName(name, volume.id), volume.id
		id := snapshotID(m.Name)
		err := d.store.make(id, m, func(image *os.File) error { return d.copyQuiet(ctx, image, volume, raw[i]) })
		if err == nil {
			var member *item
			if member, err = d.store.get(id); err == nil {
				members = append(members, member)
			}
		}
		if err != nil {
			return nil, errors.Join(err, d.removeAll(members))
		}
	}
	return members, nil
}

// reserveCopies reserves the space for copies of the volumes.
func (d *Driver) reserveCopies(name string, volumes []*item) (release func(), err error) {
	needed := int64(0)
	for _, volume := range volumes {
		bytes, err := d.store.copyNeeds(volume)
		if err != nil {
			return nil, err
		}
		needed += bytes
	}
	return d.store.reserve(fmt.Sprintf("group snapshot %q of %d volumes", name, len(volumes)), needed)
}

// members returns the snapshots of a group, sorted by their volumes.
func (d *Driver) members(group string) ([]*item, error) {
	all, err := d.store.list(d.store.snapshots())
	if err != nil {
		return nil, err
	}
	members := slices.DeleteFunc(all, func(it *item) bool { return it.Group != group })
	slices.SortFunc(members, func(a, b *item) int { return slices.Compare([]string{a.Source}, []string{b.Source}) })
	return members, nil
}

// isComplete reports whether these are all snapshots of a group: a call that is interrupted leaves some.
func isComplete(members []*item) bool {
	return len(members) > 0 && len(members) == len(members[0].GroupSources)
}

func (d *Driver) removeAll(items []*item) error {
	var errs []error
	for _, it := range items {
		errs = append(errs, d.store.remove(it.id))
	}
	return errors.Join(errs...)
}

// DeleteVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) DeleteVolumeGroupSnapshot(
	ctx context.Context, req *csi.DeleteVolumeGroupSnapshotRequest,
) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	group := req.GetGroupSnapshotId()
	if group == "" {
		return nil, missingField("group_snapshot_id")
	}
	if !groupPattern.MatchString(group) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil // never was one of ours
	}
	return run(ctx, d.inflight, append([]string{group}, snapshotIDs(req.GetSnapshotIds())...),
		func(context.Context) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
			members, err := d.members(group)
			if err != nil {
				return nil, grpcError(err)
			}
			for _, member := range members { // after an interrupted call some are gone already
				if !slices.Contains(req.GetSnapshotIds(), member.id) {
					return nil, mismatch(group, members, req.GetSnapshotIds())
				}
			}
			if err := d.removeAll(members); err != nil {
				return nil, grpcError(err)
			}
			return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
		})
}

// GetVolumeGroupSnapshot implements csi.GroupControllerServer.
func (d *Driver) GetVolumeGroupSnapshot(
	_ context.Context, req *csi.GetVolumeGroupSnapshotRequest,
) (*csi.GetVolumeGroupSnapshotResponse, error) {
	group := req.GetGroupSnapshotId()
	if group == "" {
		return nil, missingField("group_snapshot_id")
	}
	members, err := d.members(group)
	switch {
	case err != nil:
		return nil, grpcError(err)
	case !isComplete(members):
		return nil, status.Errorf(codes.NotFound, "group snapshot %q %v", group, errNotFound)
	}
	wanted := slices.Sorted(slices.Values(req.GetSnapshotIds()))
	if have := idsOf(members); !slices.Equal(have, wanted) {
		return nil, mismatch(group, members, wanted)
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: describeGroup(group, members)}, nil
}

// snapshotIDs returns those ids that may be snapshots of this driver.
func snapshotIDs(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !isSnapshotID(id) })
}

func idsOf(items []*item) []string {
	var ids []string
	for _, it := range items {
		ids = append(ids, it.id)
	}
	slices.Sort(ids)
	return ids
}

func mismatch(group string, members []*item, wanted []string) error {
	return status.Errorf(codes.InvalidArgument, "snapshot_ids: group snapshot %q has the snapshots %q, not %q", group, idsOf(members), wanted)
}

func describeGroup(group string, members []*item) *csi.VolumeGroupSnapshot {
	described := &csi.VolumeGroupSnapshot{GroupSnapshotId: group, ReadyToUse: true, CreationTime: timestamppb.New(members[0].Created)}
	for _, member := range members {
		described.Snapshots = append(described.Snapshots, describeSnapshot(member))
	}
	return described
}

// errMember is the error for a snapshot that cannot be deleted without its group.
func errMember(it *item) error {
	return status.Errorf(codes.FailedPrecondition, "snapshot %q is of group snapshot %q: delete that", it.id, it.Group)
}
