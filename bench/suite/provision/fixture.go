package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	creators = 16
)

// fixture is a namespace and a class of one sample's own.
type fixture struct {
	name   string
	client kubernetes.Interface
}

func newFixture(ctx context.Context, client kubernetes.Interface, name string) (*fixture, error) {
	p := &fixture{name: name, client: client}
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.name}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create namespace: %w", err)
	}
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: p.name}, Provisioner: p.provisioner()}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create class: %w", err)
	}
	return p, nil
}

func (p *fixture) provisioner() string { return "example.com/" + p.name }

// create creates that many claims and returns the time of each request.
func (p *fixture) create(ctx context.Context, count int) (map[string]time.Time, error) {
	var (
		mu    sync.Mutex // guards began and errs
		began = make(map[string]time.Time, count)
		errs  error
		all   sync.WaitGroup
		next  = make(chan int)
	)
	for range creators {
		all.Go(func() {
			for i := range next {
				name := fmt.Sprint("claim-", i)
				now := time.Now()
				_, err := p.client.CoreV1().PersistentVolumeClaims(p.name).Create(ctx, p.claim(name), metav1.CreateOptions{})
				mu.Lock()
				began[name], errs = now, errors.Join(errs, err)
				mu.Unlock()
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	all.Wait()
	return began, errs
}

func (p *fixture) claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &p.name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
}

// watchBound returns when each claim became bound, once that many are. It can be limited to one name.
func (p *fixture) watchBound(ctx context.Context, count int, only ...string) (map[string]time.Time, error) {
	var selector string
	for _, name := range only {
		selector = "metadata.name=" + name
	}
	informer := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithNamespace(p.name),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector }),
	).Core().V1().PersistentVolumeClaims().Informer()
	bound := make(map[string]time.Time, count) // used by the handler alone until all is closed
	all := make(chan struct{})
	see := func(obj any) {
		claim, is := obj.(*corev1.PersistentVolumeClaim)
		if !is || claim.Status.Phase != corev1.ClaimBound {
			return
		}
		if _, known := bound[claim.Name]; known || len(bound) == count {
			return
		}
		if bound[claim.Name] = time.Now(); len(bound) == count {
			close(all)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch claims: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(watching) })
	defer running.Wait()
	defer stop()
	select {
	case <-all:
		return bound, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %d claims to be bound: %w", count, ctx.Err())
	}
}

// variant measures so many claims at once.
func variant(name string, count int, limited bool, run engine) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error {
		return measure(ctx, s, count, limited, run)
	}}
}

func measure(ctx context.Context, s *harness.Sample, count int, limited bool, run engine) error {
	client, config, err := testbed.Client(os.Getenv(testbed.EnvKubeconfig))
	if err != nil {
		return err
	}
	p, err := newFixture(ctx, client, fmt.Sprintf("bench-%d-%d", s.Round, os.Getpid()))
	if err != nil {
		return err
	}
	var counted writes
	own, err := counted.client(config, limited)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(running, own, p.provisioner()) }()
	defer stop()
	// Once the first claim is bound, the informers have synced and the provisioner works.
	if err := p.warm(ctx, "warm"); err != nil {
		return err
	}
	// Its last writes come a little later and must not be counted.
	if err := counted.waitQuiet(ctx); err != nil {
		return err
	}
	counted.reset()
	if err := p.bindAll(ctx, s, count, &counted); err != nil {
		return err
	}
	s.Set("writes a claim", float64(counted.Load())/float64(count))
	s.Set("refused writes", float64(counted.refused.Load()))
	stop()
	if err := finish(done); err != nil {
		return err
	}
	return p.remove(ctx)
}

// bindAll makes so many claims and measures until all, and the one that was there, are bound. What is written after that
// counts too, but for the time.
func (p *fixture) bindAll(ctx context.Context, s *harness.Sample, count int, counted *writes) error {
	type result struct {
		bound map[string]time.Time
		err   error
	}
	watched := make(chan result, 1)
	go func() {
		bound, err := p.watchBound(ctx, count+1)
		watched <- result{bound, err}
	}()
	before, err := controlPlaneCPU(ctx, p.client)
	if err != nil {
		return err
	}
	meter := harness.StartMeter()
	began, err := p.create(ctx, count)
	if err != nil {
		return err
	}
	seen := <-watched
	if seen.err != nil {
		return seen.err
	}
	bound := meter.Stop()
	if err := counted.waitQuiet(ctx); err != nil {
		return err
	}
	all := meter.Stop()
	after, err := controlPlaneCPU(ctx, p.client)
	if err != nil {
		return err
	}
	var waits []float64
	for name, at := range began {
		waits = append(waits, harness.Milliseconds(seen.bound[name].Sub(at)))
	}
	s.Keep("claim to bound", waits)
	s.Set("all bound", bound.Wall.Seconds())
	s.Set("last write", (all.Wall - quietTime).Seconds())
	s.Set("bound p50", harness.Quantile(waits, 0.5)/1e3)
	s.Set("bound p99", harness.Quantile(waits, 0.99)/1e3)
	s.Set("CPU of the provisioner a claim", harness.Milliseconds(all.CPU)/float64(count))
	s.Set("CPU of the control plane a claim", harness.Milliseconds(after-before)/float64(count))
	return nil
}

// finish waits for an engine that was stopped; the library does not always end.
func finish(done <-chan error) error {
	timer := time.NewTimer(5 * time.Second)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return nil
	}
}

// warm provisions one claim.
func (p *fixture) warm(ctx context.Context, name string) error {
	_, err := p.client.CoreV1().PersistentVolumeClaims(p.name).Create(ctx, p.claim(name), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim: %w", err)
	}
	_, err = p.watchBound(ctx, 1, name)
	return err
}
