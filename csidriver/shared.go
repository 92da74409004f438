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

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// publishedName is the file in a shared volume's directory that records the node to which it is published.
const publishedName = "published.json"

// publication records to which node a shared volume is published, and how.
type publication struct {
	Node     string `json:"node"`
	Readonly bool   `json:"readonly"`
}

// publication returns where the volume is published, nil if nowhere.
func (s *store) publication(id string) (*publication, error) {
	path := filepath.Join(s.dir(id), publishedName)
	data, err := statefile.Read(path, metadataLimit)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read where %q is published: %w", id, err)
	}
	p := &publication{}
	if err = json.Unmarshal(data, p); err == nil && p.Node == "" {
		err = errors.New("it names no node")
	}
	if err != nil { // to ignore it could attach the volume to two nodes, which destroys its data
		return nil, fmt.Errorf("decode where %q is published: %w: delete %s once no node has the volume mounted", id, err, path)
	}
	return p, nil
}

// publish records where the volume is published. The caller holds the id.
func (s *store) publish(id string, p publication) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("publish %q: %w", id, err)
	}
	if err := atomicfile.Write(filepath.Join(s.dir(id), publishedName), data, 0o600); err != nil {
		return fmt.Errorf("publish %q: %w", id, err)
	}
	return nil
}

// unpublish removes the record. A volume that does not exist or is published nowhere is no error. The caller holds the id.
func (s *store) unpublish(id string) error {
	if err := removeMark(filepath.Join(s.dir(id), publishedName)); err != nil {
		return fmt.Errorf("unpublish %q: %w", id, err)
	}
	return nil
}

// publishShared publishes a shared volume to any node, to one at a time. The driver on the node attaches it.
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
		if err != nil { // it may be published there
			d.store.logUnreadable(v.id, err)
			count++
			continue
		}
		if p != nil && p.Node == node {
			count++
		}
	}
	return count, nil
}

// unpublishShared unpublishes a shared volume from the node, or from any node if the request names none. It cannot check
// whether that node still has the volume mounted: the caller has made sure of that, or considers the node dead.
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

// checkPublished returns an error if a shared volume is not published to this node. The caller holds the id.
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

// detachShared detaches the device of a shared volume that this machine no longer uses. It fails while something has the device open, and
// be it a copy of the volume's mount in another mount namespace: that would go on to write while another node has the volume. The caller
// holds the id.
func (d *Driver) detachShared(id string) error {
	device, err := d.loops.findAny(d.store.image(id))
	if errors.Is(err, os.ErrNotExist) || err == nil && device == nil {
		return nil
	}
	if err != nil {
		return err
	}
	if detached, err := d.detachUnmounted(device); err != nil || !detached {
		return err
	}
	device, err = d.loops.findAny(d.store.image(id))
	if err != nil || device == nil {
		return err
	}
	return status.Errorf(codes.FailedPrecondition, "volume %q is still in use: its device %s is open although nothing here has it mounted. "+
		"Processes of mount namespaces that have it mounted: %v; end them", id, device.path, device.holders())
}
