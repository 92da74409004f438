package berthtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// installTimeout and installPeriod are how long, and how often, InstallCRDs and Install check what they have created: envtest's
// defaults, but that a busy machine has longer.
const (
	installTimeout = time.Minute
	installPeriod  = 100 * time.Millisecond
)

// CRDInstallOptions says which CRDs InstallCRDs installs. It has the fields of envtest's.
type CRDInstallOptions struct {
	// Scheme says which kinds have conversions, for which the CRDs get conversion webhooks. Nil is client-go's.
	Scheme *runtime.Scheme
	// Paths are files, and directories whose files with the endings .yaml, .yml and .json are read.
	Paths []string
	// CRDs are installed, too.
	CRDs []*apiextensionsv1.CustomResourceDefinition
	// ErrorIfPathMissing makes a path that does not exist an error.
	ErrorIfPathMissing bool
	// MaxTime bounds the wait until the API server serves the CRDs, PollInterval is the time between two checks. 0 is one minute, and 100 ms.
	MaxTime, PollInterval time.Duration
	// CleanUpAfterUse has Environment.Stop delete the CRDs.
	CleanUpAfterUse bool
	// WebhookOptions name the server of conversion webhooks. Environment.Start sets them.
	WebhookOptions WebhookInstallOptions
}

// with returns the options with what the fields of the environment add.
func (o CRDInstallOptions) with(e *Environment) CRDInstallOptions {
	if o.Scheme == nil {
		o.Scheme = e.Scheme
	}
	byName := map[string]bool{}
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, crd := range append(append(all, e.CRDs...), o.CRDs...) {
		if !byName[crd.Name] {
			byName[crd.Name] = true
			all = append(all, crd.DeepCopy())
		}
	}
	o.CRDs = all
	known := map[string]bool{}
	var paths []string
	for _, path := range append(append(paths, o.Paths...), e.CRDDirectoryPaths...) {
		if !known[path] {
			known[path] = true
			paths = append(paths, path)
		}
	}
	o.Paths = paths
	o.ErrorIfPathMissing = o.ErrorIfPathMissing || e.ErrorIfCRDPathMissing
	o.WebhookOptions = e.WebhookInstallOptions
	return o
}

// InstallCRDs creates the CRDs, or updates those that exist, and waits until the API server serves them. It returns all of them.
func InstallCRDs(config *rest.Config, options CRDInstallOptions) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	if err := ReadCRDFiles(&options); err != nil {
		return nil, err
	}
	if err := convertByWebhook(options); err != nil {
		return nil, err
	}
	if err := CreateCRDs(config, options.CRDs); err != nil {
		return options.CRDs, err
	}
	return options.CRDs, WaitForCRDs(config, options.CRDs, options)
}

// ReadCRDFiles adds the CRDs of options.Paths to options.CRDs. Of several definitions of one name the last counts.
func ReadCRDFiles(options *CRDInstallOptions) error {
	documents, err := readPaths(options.Paths, !options.ErrorIfPathMissing)
	if err != nil {
		return fmt.Errorf("read CRDs: %w", err)
	}
	index := map[string]int{}
	var read []*apiextensionsv1.CustomResourceDefinition
	for _, document := range documents {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(document.text, crd); err != nil {
			return fmt.Errorf("read CRDs: %s: %w", document.file, err)
		}
		if crd.Kind != "CustomResourceDefinition" || crd.Spec.Group == "" || crd.Spec.Names.Kind == "" {
			continue
		}
		key := crd.APIVersion + " " + crd.Name
		if i, found := index[key]; found {
			read[i] = crd
			continue
		}
		index[key] = len(read)
		read = append(read, crd)
	}
	options.CRDs = append(options.CRDs, read...)
	return nil
}

// crdResource is the resource of CRDs in the API.
var crdResource = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// CreateCRDs creates the CRDs, or updates those that exist.
func CreateCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition) error {
	for _, crd := range crds {
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		if err := createOrUpdate(context.Background(), config, crdResource, crd); err != nil {
			return fmt.Errorf("install CRD %s: %w", crd.Name, err)
		}
	}
	return nil
}

// WaitForCRDs waits until the API server serves all versions of the CRDs that are to be served.
func WaitForCRDs(config *rest.Config, crds []*apiextensionsv1.CustomResourceDefinition, options CRDInstallOptions) error {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("wait for CRDs: %w", err)
	}
	missing := map[schema.GroupVersionResource]bool{}
	for _, crd := range crds {
		for _, version := range crd.Spec.Versions {
			if version.Served {
				missing[schema.GroupVersionResource{Group: crd.Spec.Group, Version: version.Name, Resource: crd.Spec.Names.Plural}] = true
			}
		}
	}
	period, limit := orDefault(options.PollInterval, installPeriod), orDefault(options.MaxTime, installTimeout)
	err = wait.PollUntilContextTimeout(context.Background(), period, limit, true, func(context.Context) (bool, error) {
		for resource := range missing {
			if isServed(client, resource) {
				delete(missing, resource)
			}
		}
		return len(missing) == 0, nil
	})
	if err != nil {
		for resource := range missing {
			return fmt.Errorf("wait for CRDs: after %v the API server does not serve %s of %s/%s: %w", limit, resource.Resource,
				resource.Group, resource.Version, err)
		}
	}
	return err
}

func isServed(client discovery.DiscoveryInterface, wanted schema.GroupVersionResource) bool {
	list, err := client.ServerResourcesForGroupVersion(wanted.GroupVersion().String())
	if err != nil {
		return false // not yet
	}
	for _, resource := range list.APIResources {
		if resource.Name == wanted.Resource {
			return true
		}
	}
	return false
}

// UninstallCRDs deletes the CRDs, with all their objects. One that does not exist is no error.
func UninstallCRDs(config *rest.Config, options CRDInstallOptions) error {
	if err := ReadCRDFiles(&options); err != nil {
		return err
	}
	var errs []error
	for _, crd := range options.CRDs {
		if err := deleteObject(context.Background(), config, crdResource, crd.Name); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("uninstall CRD %s: %w", crd.Name, err))
		}
	}
	return errors.Join(errs...)
}

// convertByWebhook makes the CRDs of kinds with conversions use the webhook server of the suite. Other CRDs with a webhook get none, because the
// API server refuses a webhook without a server.
func convertByWebhook(options CRDInstallOptions) error {
	webhooks := options.WebhookOptions
	if len(webhooks.LocalServingCAData) == 0 {
		return nil
	}
	kinds := options.Scheme
	if kinds == nil {
		kinds = scheme.Scheme
	}
	address, err := webhooks.hostPort()
	if err != nil {
		return err
	}
	url := "https://" + address + "/convert"
	for _, crd := range options.CRDs {
		if crd.Spec.PreserveUnknownFields {
			continue
		}
		kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
		if !webhooks.IgnoreSchemeConvertible && !isConvertible(kinds, kind) {
			crd.Spec.Conversion = nil
			continue
		}
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1", "v1beta1"},
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: webhooks.LocalServingCAData},
			},
		}
	}
	return nil
}

func orDefault(given, otherwise time.Duration) time.Duration {
	if given == 0 {
		return otherwise
	}
	return given
}
