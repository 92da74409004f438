package agent_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/cri/fake"
)

// A static Pod runs without an API server, here on a container runtime in memory. An agent of a cluster has Deps.Client, and
// Config.Runtime.Endpoint instead of Deps.Runtime.
func Example() {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	kubelet, err := agent.New(agent.Deps{Runtime: fake.New(clock.RealClock{})}, agent.Config{
		Node:    agent.NodeConfig{Name: "node-1", IPs: []net.IP{net.IPv4(192, 0, 2, 1)}},
		RootDir: filepath.Join(dir, "root"),
		Logs:    agent.LogsConfig{PodsDir: filepath.Join(dir, "logs")},
		Cgroups: agent.CgroupConfig{Root: "/berth-example"},
	})
	if err != nil {
		panic(err)
	}
	defer kubelet.Close()
	running := make(chan string, 1)
	kubelet.Subscribe(func(event agent.PodEvent) {
		if event.Status.Phase == corev1.PodRunning {
			select {
			case running <- event.Status.ContainerStatuses[0].Name:
			default:
			}
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- kubelet.Start(ctx) }()

	kubelet.SetStatic([]*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default", UID: "1", Annotations: map[string]string{config.SourceAnnotation: config.SourceFile},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx:1.29"}}},
	}})
	fmt.Println("running:", <-running)

	stop() // containers run on: StopPods stops them
	if err := <-ended; err != nil {
		panic(err)
	}
	fmt.Println("stopped:", kubelet.StopPods(context.Background()))
	// Output:
	// running: nginx
	// stopped: <nil>
}
