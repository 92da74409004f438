package up

import (
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/up/containerd"
)

// runtimeClasses returns a class for each runtime of the nodes' containerd. A node with a runtime of another origin may not have them;
// a Pod that names one does not start there.
func runtimeClasses() (classes []runtime.Object) {
	for _, name := range containerd.Runtimes() {
		classes = append(classes, &nodev1.RuntimeClass{
			TypeMeta:   metav1.TypeMeta{APIVersion: nodev1.SchemeGroupVersion.String(), Kind: "RuntimeClass"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Handler:    name,
		})
	}
	return classes
}
