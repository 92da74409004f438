package up

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/examples"
	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/listwatch"
)

const (
	demoNamespace = "default"
	demoPort      = "8080"
)

// clientConfig reads a kubeconfig. It disables client-side rate limiting: the API server has priority and fairness.
func clientConfig(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	config.QPS = -1
	return config, nil
}

// newClient returns an API client with the identity of a kubeconfig.
func newClient(path string) (*kubernetes.Clientset, error) {
	config, err := clientConfig(path)
	if err != nil {
		return nil, err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client from %s: %w", path, err)
	}
	return client, nil
}

// showDemo runs the demo. If it fails, it says so; the node, which is ready, runs on.
func (c *Cluster) showDemo(ctx context.Context) {
	if err := c.demo(ctx); err != nil && ctx.Err() == nil {
		c.progress.Failed("demo", err)
		c.logger.Warn("the demo has failed", "error", err)
	}
}

// demo applies the demo, waits until its Pod is ready, explains how it became ready, and fetches its page once.
func (c *Cluster) demo(ctx context.Context) error {
	config, err := clientConfig(c.ownerKubeconfig())
	if err != nil {
		return err
	}
	objects, err := parseManifest(examples.Demo)
	if err != nil {
		return fmt.Errorf("read the demo's manifest: %w", err)
	}
	if err := apply(ctx, config, demoNamespace, objects); err != nil {
		return err
	}
	c.progress.Starting("demo")
	client, err := newClient(c.ownerKubeconfig())
	if err != nil {
		return err
	}
	pod, err := waitDemoPod(ctx, client)
	if err != nil {
		return err
	}
	c.progress.Ready("demo", "")
	answer, err := explain.Pod(ctx, explain.Source{Client: client, Records: localRecords{c.timeline}, Clock: c.clock}, pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	var way bytes.Buffer
	if err := explain.Print(&way, answer, c.config.Width); err != nil {
		return err
	}
	url := "http://" + net.JoinHostPort(pod.Status.PodIP, demoPort) + "/"
	if _, err := fetch(ctx, url); err != nil {
		return fmt.Errorf("the demo's Pod is ready, but does not serve its page: %w", err)
	}
	count, err := fetch(ctx, url+"count")
	if err != nil {
		return fmt.Errorf("the demo's Pod is ready, but does not serve its count: %w", err)
	}
	c.progress.Printf("\n%s\n  page        %s  (visits: %s)\n  again       %s\n  delete it   %s   (the count stays on its volume)\n",
		way.String(), url, count, c.Hint("explain pod "+pod.Name), c.Hint("kubectl delete pod "+pod.Name))
	return nil
}

// waitDemoPod waits until a Pod of the demo is ready.
func waitDemoPod(ctx context.Context, client kubernetes.Interface) (*corev1.Pod, error) {
	source := listwatch.Select(client.CoreV1().Pods(demoNamespace), client, func(options *metav1.ListOptions) {
		options.LabelSelector = labels.Set{"app": "demo"}.String()
	})
	var ready *corev1.Pod
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted || pod.DeletionTimestamp != nil {
			return false, nil
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.Status.PodIP != "" {
				ready = pod
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the demo's Pod: %w", err)
	}
	return ready, nil
}

// fetch reads a short page from the pod network.
func fetch(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", url, err)
	}
	// The pod network is this machine's own: a proxy from the environment must not see it.
	transport := &http.Transport{Proxy: nil}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("fetch %s: %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return strings.TrimSpace(string(body)), nil
}
