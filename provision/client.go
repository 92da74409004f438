package provision

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// unthrottled returns a client with the connections and the identity of the given one, but without client-go's default limit
// of a few requests a second: the API server's priority and fairness shares its capacity better. A fake client is returned
// as it is.
func unthrottled(client kubernetes.Interface) kubernetes.Interface {
	shared, ok := client.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || shared == nil || shared.Client == nil {
		return client
	}
	base := *shared.Get().URL()
	prefix, found := strings.CutSuffix(base.Path, "/api/v1")
	if !found {
		return client
	}
	base.Path = prefix
	own, err := kubernetes.NewForConfigAndClient(&rest.Config{
		Host: base.String(), QPS: -1,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}, shared.Client)
	if err != nil {
		return client
	}
	return own
}
