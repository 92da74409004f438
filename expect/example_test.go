package expect_test

import (
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/expect"
)

// A controller that wants two objects and whose cache shows none yet, called twice in a row.
func ExampleExpectationsStore() {
	store := expect.NewExpectationsStore()
	const desired = 2
	var cached []types.UID // what the informer cache holds: it lags behind
	for range 2 {
		store.SyncExpectations("default/web", cached, nil)
		missing := desired - len(cached) - len(store.GetCreateExpectations("default/web")) +
			len(store.GetDeleteExpectations("default/web"))
		fmt.Println("creating", missing)
		for i := range missing {
			created := types.UID(fmt.Sprint("uid-", i)) // from the Create call's answer
			_ = store.ExpectCreations(logr.Discard(), "default/web", created)
		}
	}
	// Output:
	// creating 2
	// creating 0
}
