package provision

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// unthrottled is a client over the same connections and with the same identity as the one given, but without
// client-go's limit of a few requests a second, which nobody chose who did not set it: the API server's own
// priority and fairness shares it out better. A client that is no real one is given back as it is.
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
