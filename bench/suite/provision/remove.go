package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/bench/harness"
)

// remove deletes the class, the claims and their volumes, and returns when they are gone: released volumes that no controller
// deletes would be looked at by kube-controller-manager every 15 s, during the samples that follow.
func (p *fixture) remove(ctx context.Context) error {
	claims := p.client.CoreV1().PersistentVolumeClaims(p.name)
	err := errors.Join(
		p.client.StorageV1().StorageClasses().Delete(ctx, p.name, metav1.DeleteOptions{}),
		claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
	)
	for err == nil {
		left, listErr := claims.List(ctx, metav1.ListOptions{Limit: 1})
		if listErr != nil || len(left.Items) == 0 {
			err = listErr
			break
		}
		err = harness.Pause(ctx, 100*time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("remove claims: %w", err)
	}
	return p.removeVolumes(ctx)
}

// removeVolumes deletes the class's volumes. They have no data, so their finalizers have nothing to wait for.
func (p *fixture) removeVolumes(ctx context.Context) error {
	volumes := p.client.CoreV1().PersistentVolumes()
	list, err := volumes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	names := make(chan string)
	failed := make(chan error, creators)
	var all sync.WaitGroup
	for range creators {
		all.Go(func() {
			var errs error
			for name := range names {
				errs = errors.Join(errs, p.removeVolume(ctx, name))
			}
			failed <- errs
		})
	}
	for i := range list.Items {
		if list.Items[i].Spec.StorageClassName == p.name {
			names <- list.Items[i].Name
		}
	}
	close(names)
	all.Wait()
	close(failed)
	for errs := range failed {
		err = errors.Join(err, errs)
	}
	return err
}

func (p *fixture) removeVolume(ctx context.Context, name string) error {
	volumes := p.client.CoreV1().PersistentVolumes()
	err := volumes.Delete(ctx, name, metav1.DeleteOptions{})
	if err == nil {
		_, err = volumes.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove volume %q: %w", name, err)
	}
	return nil
}
