package modify

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/reconcile"
)

// timelineOwner is the owner of the stages in timelines.
const timelineOwner = "modifier"

// Driver modifies volumes. Its errors carry the gRPC status of the driver's response; an error without a status means that
// nothing was sent. It is safe for concurrent use.
type Driver interface {
	// SupportsModify reports whether the driver modifies volumes.
	SupportsModify(ctx context.Context) (bool, error)
	// ModifyVolume applies the parameters of a VolumeAttributesClass to the claim's volume. It may be repeated.
	ModifyVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, parameters map[string]string) error
}

// Deps are what a Modifier works with. Client and Driver are required.
type Deps struct {
	claimwork.Deps
	Driver Driver
}

// Config is how a Modifier works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose volumes are modified.
	DriverName string
	// Workers is how many volumes are modified at once. Default claimwork.DefaultWorkers.
	Workers int
}

// Modifier modifies the volumes of one driver. Start runs it, once.
type Modifier struct {
	*claimwork.Controller
	driver Driver

	// classWanted is closed when the first claim waits for a class.
	classWanted chan struct{}
	classOnce   sync.Once
	mu          sync.Mutex // guards waiting
	// waiting has the claims that wait for a class to be created.
	waiting map[reconcile.Request]string
}

// New returns a Modifier. It starts nothing.
func New(deps Deps, config Config) (*Modifier, error) {
	if deps.Driver == nil {
		return nil, errors.New("modify: Deps.Driver is required")
	}
	m := &Modifier{driver: deps.Driver, classWanted: make(chan struct{}), waiting: map[reconcile.Request]string{}}
	var err error
	m.Controller, err = claimwork.New(deps.Deps, claimwork.Config{
		DriverName: config.DriverName, Workers: config.Workers, Owner: timelineOwner, Work: "modification", EventFailed: eventFailed,
		CallDurations: "persistentvolumeclaim_modify_duration_seconds", Help: "Duration of ControllerModifyVolume calls, by outcome.",
		NeedsWork: needsWork, Watch: m.watchClasses,
	}, m.reconcile)
	if err != nil {
		return nil, fmt.Errorf("modify: %w", err)
	}
	return m, nil
}
