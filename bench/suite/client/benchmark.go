package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/client"
)

const (
	ours      = "berth"
	theirs    = "informer"
	objects   = 10_000
	pending   = 1_000
	gets      = 4_000_000
	namespace = "default"
)

// get reads one object.
type get func(ctx context.Context, name string) error

// Benchmark measures the reads.
func Benchmark() harness.Benchmark {
	c := func(name string, goroutines, writes int) harness.Case {
		return harness.Case{
			Name: name,
			Metrics: []harness.Metric{
				{Name: "CPU a Get", Unit: "ns", Better: harness.Lower},
				{Name: "Gets", Unit: "/s", Better: harness.Higher},
				{Name: "allocated a Get", Unit: "B", Better: harness.Lower},
			},
			Targets: []harness.Target{{Metric: "CPU a Get", Against: theirs, Ratio: 1.2}},
			Variants: []harness.Variant{
				{Name: ours, Run: func(ctx context.Context, s *harness.Sample) error {
					return run(ctx, s, goroutines, func(p *fixture) (get, error) { return p.client(ctx, writes) })
				}},
				{Name: theirs, Run: func(ctx context.Context, s *harness.Sample) error {
					return run(ctx, s, goroutines, func(p *fixture) (get, error) { return p.informer(), nil })
				}},
			},
		}
	}
	return harness.Benchmark{
		Name: "client", Title: "Cached reads", Budget: time.Minute,
		About: "4,000,000 Gets of 10,000 objects in an informer's cache, through Berth's client, which shows its own" +
			" writes before the cache does, and through client-go's lister. *Pending* means that 1,000 writes of other" +
			" objects through the client are not yet in the cache.",
		Cases: []harness.Case{
			c("1 goroutine", 1, 0), c("8 goroutines", 8, 0), c("1 goroutine, pending", 1, pending),
		},
	}
}

// fixture is an informer whose cache is filled by hand, so that nothing else runs.
type fixture struct {
	factory informers.SharedInformerFactory
	lister  corelisters.ConfigMapLister
}

func newFixture() (*fixture, error) {
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"}) // never called
	if err != nil {
		return nil, err
	}
	p := &fixture{factory: informers.NewSharedInformerFactory(clientset, 0)}
	configMaps := p.factory.Core().V1().ConfigMaps()
	for i := range objects {
		if err := configMaps.Informer().GetIndexer().Add(configMap(fmt.Sprint("object-", i), "1")); err != nil {
			return nil, err
		}
	}
	p.lister = configMaps.Lister()
	return p, nil
}

func configMap(name, version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: version}}
}

func (p *fixture) informer() get {
	return func(_ context.Context, name string) error {
		_, err := p.lister.ConfigMaps(namespace).Get(name)
		return err
	}
}

func (p *fixture) client(ctx context.Context, writes int) (get, error) {
	c, err := client.New(func(string) writer { return writer{} }, p.factory.Core().V1().ConfigMaps().Informer(),
		client.Config[*corev1.ConfigMap]{Resource: corev1.Resource("configmaps")})
	if err != nil {
		return nil, err
	}
	for i := range writes {
		if _, err := c.Create(ctx, configMap(fmt.Sprint("new-", i), ""), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	if c.Pending() != writes {
		return nil, fmt.Errorf("%d writes are pending, not %d", c.Pending(), writes)
	}
	return func(ctx context.Context, name string) error {
		_, err := c.Get(ctx, namespace, name)
		return err
	}, nil
}

// writer is an API that takes creations; nothing else is asked of it.
type writer struct {
	corev1client.ConfigMapInterface
}

// Create returns the object as an API server would, newer than all in the cache.
func (writer) Create(_ context.Context, obj *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	stored := obj.DeepCopy()
	stored.ResourceVersion = "2"
	return stored, nil
}

func run(ctx context.Context, s *harness.Sample, goroutines int, prepare func(*fixture) (get, error)) error {
	p, err := newFixture()
	if err != nil {
		return err
	}
	read, err := prepare(p)
	if err != nil {
		return err
	}
	names := namesOf(objects)
	meter := harness.StartMeter()
	var all sync.WaitGroup
	var (
		mu   sync.Mutex
		errs error // guarded by mu
	)
	for worker := range goroutines {
		all.Go(func() {
			err := readAll(ctx, read, names, worker, gets/goroutines)
			mu.Lock()
			defer mu.Unlock()
			errs = errors.Join(errs, err)
		})
	}
	all.Wait()
	spent := meter.Stop()
	s.Set("CPU a Get", float64(spent.CPU.Nanoseconds())/gets)
	s.Set("Gets", gets/spent.Wall.Seconds())
	s.Set("allocated a Get", float64(spent.Allocated)/gets)
	return errs
}

func namesOf(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("object-", i)
	}
	return names
}

// readAll reads names in an order that jumps about.
func readAll(ctx context.Context, read get, names []string, from, count int) error {
	const stride = 7919 // a prime, so that every name gets its turn
	at := from * stride
	for range count {
		at = (at + stride) % len(names)
		if err := read(ctx, names[at]); err != nil {
			return err
		}
	}
	return nil
}
