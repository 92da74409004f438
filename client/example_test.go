package client_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/client"
)

// A controller that counts its Pods right after it has made one, and does not count one too few.
func ExampleNew() {
	makeAndCount := func(ctx context.Context, clientset kubernetes.Interface, factory informers.SharedInformerFactory) error {
		pods, err := client.New(clientset.CoreV1().Pods, factory.Core().V1().Pods().Informer(),
			client.Config[*corev1.Pod]{Resource: corev1.Resource("pods")})
		if err != nil {
			return err
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", GenerateName: "web-", Labels: map[string]string{"app": "web"},
		}}
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		all, err := pods.List(ctx, client.ListOptions{
			Namespace: "default", Labels: labels.SelectorFromSet(labels.Set{"app": "web"}),
		})
		fmt.Println(len(all)) // with the one just made, whether the informer has seen it or not
		return err
	}
	_ = makeAndCount // called with a clientset and a factory that was started and has synced
}
