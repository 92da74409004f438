package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/value"
)

// reportingDecoder reports objects that it cannot decode.
type reportingDecoder struct {
	etcd3.Decoder
	report func()
}

// Decode implements etcd3.Decoder.
func (d reportingDecoder) Decode(data []byte, object runtime.Object, revision int64) error {
	err := d.Decoder.Decode(data, object, revision)
	if err != nil {
		d.report()
	}
	return err
}

// DecodeListItem implements etcd3.Decoder.
func (d reportingDecoder) DecodeListItem(
	ctx context.Context, data []byte, revision uint64, newItem func() runtime.Object,
) (runtime.Object, error) {
	object, err := d.Decoder.DecodeListItem(ctx, data, revision, newItem)
	if err != nil {
		d.report()
	}
	return object, err
}

// reportingTransformer reports values that it cannot decrypt.
type reportingTransformer struct {
	value.Transformer
	report func()
}

// TransformFromStorage implements value.Transformer.
func (t reportingTransformer) TransformFromStorage(ctx context.Context, data []byte, about value.Context) ([]byte, bool, error) {
	out, stale, err := t.Transformer.TransformFromStorage(ctx, data, about)
	if err != nil && ctx.Err() == nil {
		t.report()
	}
	return out, stale, err
}
