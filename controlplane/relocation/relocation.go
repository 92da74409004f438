// Package relocation makes a cluster's store follow its data directory to another path: PersistentVolumes name directories below it
// by their absolute paths, and the API does not let them change.
//
// The data directory records its own path. If it is at another path when the cluster starts, because it was moved or is a copy, the
// volumes are rewritten in the store before the API server reads it.
package relocation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// fileName is the file in the data directory that has its path.
const fileName = "location"

// volumesPrefix is where the API server stores PersistentVolumes.
const volumesPrefix = "/registry/persistentvolumes/"

// Store is what Apply uses of etcd's client.
type Store interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Txn(ctx context.Context) clientv3.Txn
}

// Former returns the path that the data directory had when the cluster ran last; empty if it is the same, or was never recorded. A damaged
// record is set aside: the path is taken to be the same, as it nearly always is.
func Former(dataDir string) (string, error) {
	data, err := atomicfile.Read(filepath.Join(dataDir, fileName))
	former := strings.TrimSuffix(string(data), "\n")
	if err == nil && !filepath.IsAbs(former) {
		err = errors.New("it has no absolute path")
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", nil
	case atomicfile.IsPassing(err):
		return "", fmt.Errorf("read the former path of the data directory: %w", err)
	case err != nil:
		atomicfile.SetAside(filepath.Join(dataDir, fileName), err, "the data directory is taken to be where it was: if it was moved, write its"+
			" former path into this file and start again, so that volumes follow it")
		return "", nil
	case former == filepath.Clean(dataDir):
		return "", nil
	}
	return former, nil
}

// Record records the data directory's path.
func Record(dataDir string) error {
	path, text := filepath.Join(dataDir, fileName), []byte(filepath.Clean(dataDir)+"\n")
	if have, err := atomicfile.Read(path); err == nil && bytes.Equal(have, text) {
		return nil
	}
	return atomicfile.Write(path, text)
}

// Apply rewrites the volumes in the store whose directories are below the path from, to be below the path to. It may run any number of times.
func Apply(ctx context.Context, store Store, from, to string) error {
	list, err := store.Get(ctx, volumesPrefix, clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("list the PersistentVolumes in the store: %w", err)
	}
	for _, item := range list.Kvs {
		value, changed, err := moved(item.Value, from, to)
		if err != nil {
			return fmt.Errorf("read %s of the store: %w", item.Key, err)
		}
		if !changed {
			continue
		}
		key := string(item.Key)
		response, err := store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", item.ModRevision)).
			Then(clientv3.OpPut(key, string(value))).Commit()
		if err == nil && !response.Succeeded {
			err = errors.New("it has changed meanwhile")
		}
		if err != nil {
			return fmt.Errorf("write %s of the store: %w", key, err)
		}
		klog.InfoS("The data directory has another path than before; a volume follows it", "volume", strings.TrimPrefix(key, volumesPrefix), "from", from, "to", to)
	}
	return nil
}

// moved returns the stored form of a volume whose directory is below to in place of from. changed is false if it was not below from,
// or is below to already where that is below from itself.
func moved(value []byte, from, to string) (_ []byte, changed bool, err error) {
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return nil, false, err
	}
	volume, ok := object.(*corev1.PersistentVolume)
	if !ok {
		return nil, false, fmt.Errorf("it is a %s", kind)
	}
	nested := strings.HasPrefix(to, from+"/")
	for _, path := range paths(volume) {
		if nested && strings.HasPrefix(*path, to+"/") {
			continue // an earlier start, which ended before it recorded the path, has moved it
		}
		if rest, below := strings.CutPrefix(*path, from+"/"); below {
			*path, changed = filepath.Join(to, rest), true
		}
	}
	if !changed {
		return nil, false, nil
	}
	volume.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolume"))
	data, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), volume)
	return data, true, err
}

// paths returns the volume's directories on its node.
func paths(volume *corev1.PersistentVolume) (all []*string) {
	if source := volume.Spec.Local; source != nil {
		all = append(all, &source.Path)
	}
	if source := volume.Spec.HostPath; source != nil {
		all = append(all, &source.Path)
	}
	return all
}
