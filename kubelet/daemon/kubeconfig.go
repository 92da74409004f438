package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/kubelet/settings"
)

// loadKubeconfig reads a kubeconfig.
func loadKubeconfig(path string, api settings.APISettings) (*rest.Config, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err) // it names the file
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("kubeconfig %q names no cluster", path) // client-go's own error suggests environment variables
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", path, err)
	}
	config.QPS, config.Burst = float32(api.QPS), api.Burst
	config.ContentType = api.ContentType
	if api.ContentType == runtime.ContentTypeProtobuf {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return config, nil
}

// usable reports whether a kubeconfig exists and its client certificate, if it has one, has not expired.
func (r *runner) usable(path string) bool {
	config, err := loadKubeconfig(path, r.config.Settings.API)
	if err != nil {
		return false
	}
	certificate, _, err := clientPair(config)
	if err != nil {
		return false
	}
	return certificate == nil || r.deps.Clock.Now().Before(certificate.NotAfter)
}

// pemPair is a certificate and its key, in PEM form.
type pemPair struct{ cert, key []byte }

// clientPair returns the client certificate of a kubeconfig; nil if it has none.
func clientPair(config *rest.Config) (*x509.Certificate, *pemPair, error) {
	pair := &pemPair{config.CertData, config.KeyData}
	for _, file := range []struct {
		path string
		data *[]byte
	}{{config.CertFile, &pair.cert}, {config.KeyFile, &pair.key}} {
		if len(*file.data) > 0 || file.path == "" {
			continue
		}
		data, err := os.ReadFile(file.path)
		if err != nil {
			return nil, nil, fmt.Errorf("read the client certificate: %w", err)
		}
		*file.data = data
	}
	if len(pair.cert) == 0 {
		return nil, nil, nil
	}
	loaded, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return nil, nil, fmt.Errorf("read the client certificate: %w", err)
	}
	return loaded.Leaf, pair, nil
}

// isMissing reports whether a file does not exist.
func isMissing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}
