package csidriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// publishedName is the file, in a shared volume's directory, that says to which node it is published.
const publishedName = "published.json"

// publication is to which node a shared volume is published, and how.
type publication struct {
	Node     string `json:"node"`
	Readonly bool   `json:"readonly"`
}

// publication returns where the volume is published, nil if nowhere.
func (s *store) publication(id string) (*publication, error) {
	data, err := os.ReadFile(filepath.Join(s.dir(id), publishedName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read where %q is published: %w", id, err)
	}
	p := &publication{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("decode where %q is published: %w", id, err)
	}
	return p, nil
}

// publish writes where the volume is published, as a whole or not at all. The caller holds the id.
func (s *store) publish(id string, p publication) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode where %q is published: %w", id, err)
	}
	path := filepath.Join(s.dir(id), publishedName)
	if err := writeSynced(path+".new", data); err != nil {
		return fmt.Errorf("write where %q is published: %w", id, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write where %q is published: %w", id, err)
	}
	return syncDir(s.dir(id))
}

// unpublish takes it back. That the volume is gone or published nowhere is fine. The caller holds the id.
func (s *store) unpublish(id string) error {
	err := os.Remove(filepath.Join(s.dir(id), publishedName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take back where %q is published: %w", id, err)
	}
	return syncDir(s.dir(id))
}

// publishShared publishes a shared volume to any node, but to one at a time. The node's own driver attaches it.
func (d *Driver) publishShared(
	ctx context.Context, req *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	id, want := req.GetVolumeId(), publication{Node: req.GetNodeId(), Readonly: req.GetReadonly()}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.ControllerPublishVolumeResponse, error) {
		if _, err := d.volume(id); err != nil {
			return nil, err
		}
		have, err := d.store.publication(id)
		switch {
		case err != nil:
			return nil, grpcError(err)
		case have == nil:
			err = d.publishNew(id, want)
		case have.Node != want.Node:
			d.logger.Warn("refused to publish volume", "volume", id, "node", want.Node, "publishedTo", have.Node)
			err = status.Errorf(codes.FailedPrecondition, "volume %q is published to node %q", id, have.Node)
		case have.Readonly != want.Readonly:
			err = status.Errorf(codes.AlreadyExists, "volume %q is published already, with readonly %t", id, have.Readonly)
		}
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{
			ContextReadonly: strconv.FormatBool(want.Readonly),
		}}, nil
	})
}

func (d *Driver) publishNew(id string, want publication) error {
	if d.config.MaxVolumes > 0 {
		count, err := d.countPublished(want.Node)
		if err != nil {
			return err
		}
		if count >= d.config.MaxVolumes {
			return status.Errorf(codes.ResourceExhausted, "node %q has %d volumes published, its limit", want.Node, count)
		}
	}
	if err := d.store.publish(id, want); err != nil {
		return err
	}
	d.logger.Info("published volume", "volume", id, "node", want.Node, "readonly", want.Readonly)
	return nil
}

func (d *Driver) countPublished(node string) (int64, error) {
	volumes, err := d.store.list(d.store.volumes())
	if err != nil {
		return 0, err
	}
	var count int64
	for _, v := range volumes {
		p, err := d.store.publication(v.id)
		if err != nil {
			return 0, err
		}
		if p != nil && p.Node == node {
			count++
		}
	}
	return count, nil
}

// unpublishShared takes a shared volume from the node, or from whichever has it if none is named. Whether that node
// still has it mounted cannot be seen from here: who calls has seen to it, or takes the node for dead.
func (d *Driver) unpublishShared(
	ctx context.Context, req *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	id := req.GetVolumeId()
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.ControllerUnpublishVolumeResponse, error) {
		have, err := d.store.publication(id)
		if err != nil {
			return nil, grpcError(err)
		}
		if have == nil || req.GetNodeId() != "" && req.GetNodeId() != have.Node {
			return &csi.ControllerUnpublishVolumeResponse{}, nil
		}
		if err := d.store.unpublish(id); err != nil {
			return nil, grpcError(err)
		}
		d.logger.Info("unpublished volume", "volume", id, "node", have.Node)
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	})
}

// checkPublished refuses to stage a shared volume that is not published to this node. The caller holds the id.
func (d *Driver) checkPublished(id string) error {
	if !d.config.Shared {
		return nil
	}
	have, err := d.store.publication(id)
	if err != nil {
		return err
	}
	if have == nil || have.Node != d.config.NodeID {
		return status.Errorf(codes.FailedPrecondition, "volume %q is not published to node %q", id, d.config.NodeID)
	}
	return nil
}

// detachUnused frees the device of a shared volume that this machine no longer uses. The caller holds the id.
func (d *Driver) detachUnused(id string) error {
	if !d.config.Shared || !isVolumeID(id) {
		return nil
	}
	device, err := d.loops.find(d.store.image(id))
	if errors.Is(err, os.ErrNotExist) || err == nil && device == nil {
		return nil
	}
	if err != nil {
		return err
	}
	filesystem, node, err := device.mounts()
	if err != nil || len(filesystem)+len(node) > 0 {
		return err
	}
	return d.loops.detach(device)
}
