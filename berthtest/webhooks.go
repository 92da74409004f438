package berthtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// WebhookInstallOptions says which webhooks the API server calls, and where the test serves them: with the Host, Port and CertDir that
// Environment.Start sets. It has the fields of envtest's.
type WebhookInstallOptions struct {
	// Paths are files, and directories whose files with the endings .yaml, .yml and .json are read.
	Paths []string
	// MutatingWebhooks and ValidatingWebhooks are installed, too.
	MutatingWebhooks   []*admissionv1.MutatingWebhookConfiguration
	ValidatingWebhooks []*admissionv1.ValidatingWebhookConfiguration
	// IgnoreSchemeConvertible gives all CRDs a conversion webhook, not only those whose kind has conversions in the scheme.
	IgnoreSchemeConvertible bool
	// IgnoreErrorIfPathMissing skips paths that do not exist.
	IgnoreErrorIfPathMissing bool
	// LocalServingHost and LocalServingPort are where the test serves webhooks: on loopback unless given, at a free port. The API server
	// reaches what listens there, on loopback by a relay.
	LocalServingHost string
	LocalServingPort int
	// LocalServingCertDir is a directory with tls.crt and tls.key for the server, LocalServingCAData the certificate that the API server trusts.
	LocalServingCertDir string
	LocalServingCAData  []byte
	// LocalServingHostExternalName is the host name by which the API server calls the webhooks, if not LocalServingHost. The API server
	// resolves it as this machine does.
	LocalServingHostExternalName string
	// MaxTime bounds the wait until the webhooks are installed, PollInterval is the time between two checks. 0 is one minute, and 100 ms.
	MaxTime, PollInterval time.Duration

	madeDir string // the directory of the certificates that makeCertificates has made; empty: none
}

// PrepWithoutInstalling reads the webhooks, chooses the port and makes the certificates, but installs nothing.
func (o *WebhookInstallOptions) PrepWithoutInstalling() error {
	if _, err := o.hostPort(); err != nil {
		return err
	}
	if err := o.read(); err != nil { // before there is a directory that the caller would not know to remove
		return err
	}
	if err := o.makeCertificates(); err != nil {
		return err
	}
	return o.ModifyWebhookDefinitions()
}

// hostPort returns the address by which the API server calls the webhooks. It chooses a port if there is none yet.
func (o *WebhookInstallOptions) hostPort() (string, error) {
	if o.LocalServingPort == 0 {
		host := o.LocalServingHost
		if host == "" {
			host = "127.0.0.1"
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return "", fmt.Errorf("choose a port for webhooks: %w", err)
		}
		address := listener.Addr().(*net.TCPAddr)
		if err := listener.Close(); err != nil {
			return "", err
		}
		o.LocalServingHost, o.LocalServingPort = address.IP.String(), address.Port
	}
	host := o.LocalServingHostExternalName
	if host == "" {
		host = o.LocalServingHost
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, portText(o.LocalServingPort)), nil
}

// makeCertificates makes the server's certificate in a directory of its own.
func (o *WebhookInstallOptions) makeCertificates() error {
	cert, key, err := servingCertificate("localhost", "127.0.0.1", "::1", o.LocalServingHost, o.LocalServingHostExternalName)
	if err != nil {
		return fmt.Errorf("make the certificate of the webhooks' server: %w", err)
	}
	if err := o.Cleanup(); err != nil {
		return err
	}
	if o.madeDir, err = os.MkdirTemp("", "berthtest-webhooks-"); err != nil {
		return fmt.Errorf("make a directory for the certificate of the webhooks' server: %w", err)
	}
	o.LocalServingCertDir = o.madeDir
	for name, data := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(o.LocalServingCertDir, name), data, 0o600); err != nil {
			return fmt.Errorf("write the certificate of the webhooks' server: %w", err)
		}
	}
	o.LocalServingCAData = cert
	return nil
}

// read adds the webhooks of Paths.
func (o *WebhookInstallOptions) read() error {
	documents, err := readPaths(o.Paths, o.IgnoreErrorIfPathMissing)
	if err != nil {
		return fmt.Errorf("read webhooks: %w", err)
	}
	for _, document := range documents {
		if err := o.add(document); err != nil {
			return fmt.Errorf("read webhooks: %s: %w", document.file, err)
		}
	}
	return nil
}

func (o *WebhookInstallOptions) add(document document) error {
	var object metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document.text, &object); err != nil {
		return err
	}
	mutating := object.Kind == "MutatingWebhookConfiguration"
	if !mutating && object.Kind != "ValidatingWebhookConfiguration" {
		return nil
	}
	if wanted := admissionv1.SchemeGroupVersion.String(); object.APIVersion != wanted {
		return fmt.Errorf("%s %s has version %s, which the API server does not have: use %s", object.Kind, object.Name, object.APIVersion, wanted)
	}
	if mutating {
		made := &admissionv1.MutatingWebhookConfiguration{}
		o.MutatingWebhooks = append(o.MutatingWebhooks, made)
		return yaml.Unmarshal(document.text, made)
	}
	made := &admissionv1.ValidatingWebhookConfiguration{}
	o.ValidatingWebhooks = append(o.ValidatingWebhooks, made)
	return yaml.Unmarshal(document.text, made)
}

// ModifyWebhookDefinitions makes the webhooks call the test's server, where they name a Service, and trust its certificate.
func (o *WebhookInstallOptions) ModifyWebhookDefinitions() error {
	address, err := o.hostPort()
	if err != nil {
		return err
	}
	direct := func(client *admissionv1.WebhookClientConfig) {
		client.CABundle = o.LocalServingCAData
		if client.Service == nil {
			return
		}
		path := ""
		if client.Service.Path != nil {
			path = strings.TrimPrefix(*client.Service.Path, "/")
		}
		url := "https://" + address + "/" + path
		client.URL, client.Service = &url, nil
	}
	for _, configuration := range o.MutatingWebhooks {
		for i := range configuration.Webhooks {
			direct(&configuration.Webhooks[i].ClientConfig)
		}
	}
	for _, configuration := range o.ValidatingWebhooks {
		for i := range configuration.Webhooks {
			direct(&configuration.Webhooks[i].ClientConfig)
		}
	}
	return nil
}

// Install installs the webhooks in the cluster and waits until they exist. Without certificates it calls PrepWithoutInstalling first.
func (o *WebhookInstallOptions) Install(config *rest.Config) error {
	if len(o.LocalServingCAData) == 0 {
		if err := o.PrepWithoutInstalling(); err != nil {
			return err
		}
	}
	for _, webhook := range o.MutatingWebhooks {
		webhook.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"))
		if err := createOrUpdate(context.Background(), config, mutatingResource, webhook); err != nil {
			return fmt.Errorf("install MutatingWebhookConfiguration %s: %w", webhook.Name, err)
		}
	}
	for _, webhook := range o.ValidatingWebhooks {
		webhook.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"))
		if err := createOrUpdate(context.Background(), config, validatingResource, webhook); err != nil {
			return fmt.Errorf("install ValidatingWebhookConfiguration %s: %w", webhook.Name, err)
		}
	}
	return WaitForWebhooks(config, o.MutatingWebhooks, o.ValidatingWebhooks, *o)
}

// The resources of webhooks in the API.
var (
	mutatingResource   = admissionv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations")
	validatingResource = admissionv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations")
)

// WaitForWebhooks waits until the API server returns all the webhooks.
func WaitForWebhooks(config *rest.Config, mutating []*admissionv1.MutatingWebhookConfiguration,
	validating []*admissionv1.ValidatingWebhookConfiguration, options WebhookInstallOptions,
) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("wait for webhooks: %w", err)
	}
	period, limit := orDefault(options.PollInterval, installPeriod), orDefault(options.MaxTime, installTimeout)
	get := func(ctx context.Context, objects dynamic.ResourceInterface, name string) (*unstructured.Unstructured, error) {
		return objects.Get(ctx, name, metav1.GetOptions{})
	}
	var last error
	err = wait.PollUntilContextTimeout(context.Background(), period, limit, true, func(ctx context.Context) (bool, error) {
		last = nil
		for _, webhook := range mutating {
			if _, err := get(ctx, client.Resource(mutatingResource), webhook.Name); err != nil {
				last = fmt.Errorf("MutatingWebhookConfiguration %s: %w", webhook.Name, err)
			}
		}
		for _, webhook := range validating {
			if _, err := get(ctx, client.Resource(validatingResource), webhook.Name); err != nil {
				last = fmt.Errorf("ValidatingWebhookConfiguration %s: %w", webhook.Name, err)
			}
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for webhooks: %w", last)
	}
	return nil
}

// Cleanup removes the directory of the certificates that PrepWithoutInstalling has made. A directory of the caller's stays.
func (o *WebhookInstallOptions) Cleanup() error {
	if o.madeDir == "" {
		return nil
	}
	return os.RemoveAll(o.madeDir)
}
