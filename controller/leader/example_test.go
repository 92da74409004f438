package leader_test

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/controller/leader"
)

// A program runs its controllers in the function that Run calls once it leads. NewClient creates the client for a real
// cluster.
func ExampleElector_Run() {
	elector, err := leader.New(leader.Deps{Client: fake.NewClientset().CoordinationV1()}, leader.Config{
		Namespace: "kube-system", Name: "my-controller", Identity: "replica-1",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = elector.Run(context.Background(), func(context.Context) error {
		fmt.Println("leading")
		return nil
	})
	fmt.Println("ended:", err)
	// Output:
	// leading
	// ended: <nil>
}
