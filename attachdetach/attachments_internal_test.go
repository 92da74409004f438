package attachdetach

import (
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/attachdetach/statusupdater"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// recreating is a lister whose first read finds nothing, and after which the VolumeAttachment is created and attached.
type recreating struct {
	storagelisters.VolumeAttachmentLister
	attach func()
}

func (l *recreating) Get(name string) (*storagev1.VolumeAttachment, error) {
	if attach := l.attach; attach != nil {
		l.attach = nil
		attach()
		return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
	}
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}, nil
}

// A whole attach fits between two steps of the populator: the deletion that it has read is older than the state.
func TestDeletionThatIsOlderThanTheAttach(t *testing.T) {
	actual, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: operationexecutor.Plugins{}})
	require.NoError(t, err)
	executor, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{Plugins: operationexecutor.Plugins{}},
		operationexecutor.Config{})
	require.NoError(t, err)
	engine, err := reconciler.New(reconciler.Deps{
		Desired: cache.NewDesiredStateOfWorld(operationexecutor.Plugins{}), Actual: actual, Executor: executor,
		Updater: statusupdater.NewNodeStatusUpdater(nil, nil, actual),
	}, reconciler.Config{})
	require.NoError(t, err)
	pair := cache.VolumeNode{Volume: "kubernetes.io/csi/disk.example.com^d", Node: "a"}
	lister := &recreating{attach: func() { require.NoError(t, actual.MarkVolumeAsAttached(pair.Volume, nil, pair.Node, "")) }}
	f := &populator{
		actual: actual, executor: executor, engine: engine, listers: listers{attachmentLister: lister},
		attachments: foundAttachments{pairs: map[string]cache.VolumeNode{"csi-d": pair}},
	}
	f.syncAttachment("csi-d")
	require.Equal(t, cache.AttachStateAttached, actual.GetAttachState(pair.Volume, pair.Node))
	require.Contains(t, f.attachments.pairs, "csi-d")
}
