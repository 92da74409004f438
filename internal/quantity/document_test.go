package quantity_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/berth-dev/berth/internal/quantity"
)

func TestCheckDocument(t *testing.T) {
	for document, path := range map[string]string{
		`{"spec":{"containers":[{},{"resources":{"requests":{"cpu":"1e-99999999"}}}]}}`:      "spec.containers[].resources.requests.cpu",
		`{"spec":{"containers":[{"resources":{"limits":{"memory":1e-99999999}}}]}}`:          "spec.containers[].resources.limits.memory",
		"spec:\n  volumes:\n  - emptyDir:\n      sizeLimit: \"1e99999999\"\n":                "spec.volumes[].emptyDir.sizeLimit",
		`{"spec":{"overhead":{"cpu":"1","cpu":"1E-99999999","cpu":"1"}}}`:                    "spec.overhead.cpu",
		`{"spec":{"overhead":{"cpu":"` + strings.Repeat("1", 1000) + `"}}}`:                  "spec.overhead.cpu",
		`{"spec":{"overhead":{"cpu":"1e-99999999"`:                                           "spec.overhead.cpu",
		`{"spec":{"containers":[{"env":[{"value":"1e-99999999"}],"args":["1e-99999999"]}]}}`: "",
		`{"spec":{"overhead":{"cpu":"100m","memory":"1e3 "}},"x":[{"y":null,"z":true}]}`:     "",
		strings.Repeat(`[`, 1<<20):                      "",
		`{"spec":[{"overhead":{"cpu":"1e-99999999"}}]}`: "",
		"": "", "{": "", "- a": "", "%": "",
	} {
		err := quantity.CheckDocument[corev1.Pod]([]byte(document))
		if path == "" {
			require.NoError(t, err, "%.80s", document)
			continue
		}
		require.ErrorContains(t, err, path+": quantity ", "%.80s", document)
	}
}

// FuzzCheckDocument decodes what passes the check, which has to be quick.
func FuzzCheckDocument(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"resources":{"requests":{"cpu":"1e-99999999"}}}]}}`))
	f.Add([]byte(`{"spec":{"overhead":{"cpu":"1.5e3","memory":"1Ei","x":1e-9}}}`))
	f.Add([]byte(`{"Spec":{"overhead":{"cpu":" 1e99 "}},"metadata":{"name":"a"}}`))
	f.Fuzz(func(t *testing.T, document []byte) {
		if len(document) > 1<<12 || quantity.CheckDocument[corev1.Pod](document) != nil {
			return
		}
		began := time.Now()
		var pod corev1.Pod
		if json.Unmarshal(document, &pod) == nil {
			for _, amount := range pod.Spec.Overhead {
				_, _ = amount.Value(), amount.MilliValue()
			}
		}
		require.Less(t, time.Since(began), 20*time.Second)
	})
}
