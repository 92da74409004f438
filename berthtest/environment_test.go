package berthtest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const crdText = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: greetings.test.berth.dev}
spec:
  group: test.berth.dev
  scope: Namespaced
  names: {plural: greetings, singular: greeting, kind: Greeting}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
`

func TestCRDsAreReadFromFilesAndDirectories(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(crdText), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "b.yml"), []byte(crdText), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte("{"), 0o600))
	e := &Environment{
		CRDDirectoryPaths: []string{dir, filepath.Join(dir, "a.yaml"), filepath.Join(dir, "missing")},
		CRDs:              []*apiextensionsv1.CustomResourceDefinition{{ObjectMeta: metav1.ObjectMeta{Name: "given"}}},
		CRDInstallOptions: CRDInstallOptions{
			Paths: []string{dir}, CRDs: []*apiextensionsv1.CustomResourceDefinition{{ObjectMeta: metav1.ObjectMeta{Name: "given"}}},
		},
	}
	options := e.CRDInstallOptions.with(e)
	require.NoError(t, ReadCRDFiles(&options))
	var names []string
	for _, crd := range options.CRDs {
		names = append(names, crd.Name)
	}
	require.Equal(t, []string{"given", "greetings.test.berth.dev"}, names)
	e.ErrorIfCRDPathMissing = true
	options = e.CRDInstallOptions.with(e)
	require.ErrorIs(t, ReadCRDFiles(&options), os.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "b.yml"), []byte("a: [\n"), 0o600))
	options = CRDInstallOptions{Paths: []string{dir}}
	require.ErrorContains(t, ReadCRDFiles(&options), "b.yml")
}

type hub struct{ runtime.Unknown }

func (*hub) Hub()                             {}
func (h *hub) DeepCopyObject() runtime.Object { return h }

type spoke struct{ runtime.Unknown }

func (*spoke) ConvertTo(any) error              { return nil }
func (*spoke) ConvertFrom(any) error            { return nil }
func (s *spoke) DeepCopyObject() runtime.Object { return s }

type plain struct{ runtime.Unknown }

func (p *plain) DeepCopyObject() runtime.Object { return p }

func TestConversionsAreKnownByTheirMethods(t *testing.T) {
	kinds := runtime.NewScheme()
	kinds.AddKnownTypeWithName(schema.GroupVersionKind{Group: "a", Version: "v1", Kind: "Whole"}, &hub{})
	kinds.AddKnownTypeWithName(schema.GroupVersionKind{Group: "a", Version: "v2", Kind: "Whole"}, &spoke{})
	kinds.AddKnownTypeWithName(schema.GroupVersionKind{Group: "a", Version: "v1", Kind: "Part"}, &hub{})
	kinds.AddKnownTypeWithName(schema.GroupVersionKind{Group: "a", Version: "v2", Kind: "Part"}, &plain{})
	kinds.AddKnownTypeWithName(schema.GroupVersionKind{Group: "a", Version: "v1", Kind: "Single"}, &hub{})
	crd := func(kind string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "a", Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter},
		}}
	}
	options := CRDInstallOptions{Scheme: kinds, CRDs: []*apiextensionsv1.CustomResourceDefinition{crd("Whole"), crd("Part"), crd("Single")}}
	options.WebhookOptions = WebhookInstallOptions{LocalServingHost: "127.0.0.1", LocalServingPort: 9443, LocalServingCAData: []byte("ca")}
	require.NoError(t, convertByWebhook(options))
	require.Equal(t, "https://127.0.0.1:9443/convert", *options.CRDs[0].Spec.Conversion.Webhook.ClientConfig.URL)
	require.Nil(t, options.CRDs[1].Spec.Conversion)
	require.Nil(t, options.CRDs[2].Spec.Conversion)
	options.WebhookOptions.IgnoreSchemeConvertible = true
	require.NoError(t, convertByWebhook(options))
	require.NotNil(t, options.CRDs[2].Spec.Conversion)
}

const webhookText = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating}
webhooks:
- name: one.test.berth.dev
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: webhook, namespace: system, path: /validate}}
- name: two.test.berth.dev
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://elsewhere.test/x"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating}
`

// TestASecondStartHasAKubeconfigOfItsCluster starts on another cluster than the first time.
func TestASecondStartHasAKubeconfigOfItsCluster(t *testing.T) {
	e := &Environment{Config: &rest.Config{Host: "https://127.0.0.1:7001"}}
	require.NoError(t, e.complete())
	require.Contains(t, string(e.KubeConfig), "https://127.0.0.1:7001")
	e.Config = &rest.Config{Host: "https://127.0.0.1:7002"}
	require.NoError(t, e.complete())
	require.Contains(t, string(e.KubeConfig), "https://127.0.0.1:7002")

	e = &Environment{Config: e.Config, KubeConfig: []byte("given")}
	require.NoError(t, e.complete())
	require.Equal(t, "given", string(e.KubeConfig))
}

// TestACertificateDirectoryOfTheCallerStays has one in the field that the environment sets.
func TestACertificateDirectoryOfTheCallerStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tls.key")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	o := &WebhookInstallOptions{LocalServingCertDir: filepath.Dir(file)}
	require.NoError(t, o.Cleanup())
	require.FileExists(t, file)
	require.NoError(t, o.PrepWithoutInstalling())
	require.NotEqual(t, filepath.Dir(file), o.LocalServingCertDir)
	first := o.LocalServingCertDir
	require.NoError(t, o.PrepWithoutInstalling())
	require.NoDirExists(t, first, "the next start makes another one")
	require.NoError(t, o.Cleanup())
	require.NoDirExists(t, o.LocalServingCertDir)
	require.FileExists(t, file)
}

// TestWebhooksAreServedWithTheCertificates makes a TLS connection as the API server does.
func TestWebhooksAreServedWithTheCertificates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "webhooks.yaml")
	require.NoError(t, os.WriteFile(file, []byte(webhookText), 0o600))
	o := &WebhookInstallOptions{Paths: []string{file}, MutatingWebhooks: []*admissionv1.MutatingWebhookConfiguration{{}}}
	require.NoError(t, o.PrepWithoutInstalling())
	t.Cleanup(func() { require.NoError(t, o.Cleanup()); require.NoDirExists(t, o.LocalServingCertDir) })
	require.Len(t, o.MutatingWebhooks, 2)
	require.Equal(t, "127.0.0.1", o.LocalServingHost)
	address := net.JoinHostPort(o.LocalServingHost, portText(o.LocalServingPort))
	first, second := o.ValidatingWebhooks[0].Webhooks[0].ClientConfig, o.ValidatingWebhooks[0].Webhooks[1].ClientConfig
	require.Nil(t, first.Service)
	require.Equal(t, "https://"+address+"/validate", *first.URL)
	require.Equal(t, "https://elsewhere.test/x", *second.URL)
	require.Equal(t, o.LocalServingCAData, first.CABundle)

	pair, err := tls.LoadX509KeyPair(filepath.Join(o.LocalServingCertDir, "tls.crt"), filepath.Join(o.LocalServingCertDir, "tls.key"))
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{pair}})
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		if connection, err := listener.Accept(); err == nil {
			_ = connection.(*tls.Conn).Handshake()
			_ = connection.Close()
		}
	}()
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(o.LocalServingCAData))
	connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: trusted})
	require.NoError(t, err)
	require.NoError(t, connection.Close())

	require.NoError(t, os.WriteFile(file, []byte("apiVersion: admissionregistration.k8s.io/v1beta1\nkind: MutatingWebhookConfiguration\nmetadata: {name: old}\n"), 0o600))
	require.ErrorContains(t, (&WebhookInstallOptions{Paths: []string{file}}).PrepWithoutInstalling(), "old has version")
	require.ErrorIs(t, (&WebhookInstallOptions{Paths: []string{"missing"}}).PrepWithoutInstalling(), os.ErrNotExist)
	ignoring := &WebhookInstallOptions{Paths: []string{"missing"}, IgnoreErrorIfPathMissing: true}
	require.NoError(t, ignoring.PrepWithoutInstalling())
	require.NoError(t, ignoring.Cleanup())
}

func TestFlagsOfTheAPIServer(t *testing.T) {
	e := &Environment{}
	e.ControlPlane.GetAPIServer().Configure().Append("feature-gates", "A=true").Append("feature-gates", "B=false").Set("runtime-config", "api/all=true")
	args, err := e.ControlPlane.args()
	require.NoError(t, err)
	require.Equal(t, []string{"--feature-gates", "A=true,B=false", "--runtime-config", "api/all=true"}, args)
	e.ControlPlane.APIServer.Configure().Set("disable-admission-plugins", "ServiceAccount")
	_, err = e.ControlPlane.args()
	require.ErrorContains(t, err, "--disable-admission-plugins cannot be set")
	e.ControlPlane.APIServer.Configure().Disable("disable-admission-plugins")
	_, err = e.ControlPlane.args()
	require.NoError(t, err)
}

func TestSettingsThatCannotBeHonouredAreErrors(t *testing.T) {
	_, err := (&Environment{DownloadBinaryAssetsIndexURL: "https://example.test"}).settings()
	require.ErrorContains(t, err, "DownloadBinaryAssetsIndexURL")
	require.ErrorContains(t, checkVersion("v1.28.0"), "has Kubernetes v1.36")
	require.NoError(t, checkVersion("1.36"))
	require.ErrorContains(t, checkVersion("latest"), "want a version")
	t.Setenv(startTimeoutEnv, "90s")
	settings, err := (&Environment{ControlPlaneStopTimeout: time.Second}).settings()
	require.NoError(t, err)
	require.Equal(t, 90*time.Second, settings.startTimeout)
	require.Equal(t, time.Second, settings.stopTimeout)
	require.Empty(t, settings.args)
	settings, err = (&Environment{APIOnly: true}).settings()
	require.NoError(t, err)
	require.Equal(t, []string{"--api-only"}, settings.args)
	t.Setenv(apiOnlyEnv, "true")
	settings, err = (&Environment{}).settings()
	require.NoError(t, err)
	require.Equal(t, []string{"--api-only"}, settings.args)
	t.Setenv(startTimeoutEnv, "soon")
	_, err = (&Environment{}).settings()
	require.ErrorContains(t, err, startTimeoutEnv+"=soon")
	_, err = (&Environment{}).AddUser(User{Name: "anna"}, nil)
	require.ErrorIs(t, err, errNotStarted)
	require.Nil(t, (&ControlPlane{}).KubeCtl())
}

func TestExistingClusterIsThatOfTheKubeconfig(t *testing.T) {
	data, err := kubeconfigOf(&rest.Config{Host: "https://192.0.2.1:6443", BearerToken: "token"})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, path)
	t.Setenv(existingClusterEnv, "True")
	e := &Environment{}
	require.NoError(t, e.start())
	require.Equal(t, "https://192.0.2.1:6443", e.Config.Host)
	require.Equal(t, "token", e.Config.BearerToken)
	_, err = e.AddUser(User{Name: "anna"}, nil)
	require.ErrorContains(t, err, "existing cluster")
	no := false
	e.UseExistingCluster = &no
	require.False(t, e.usesExistingCluster())
}

func TestAFailedStartLeavesNoFiles(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	exists := true
	env := Environment{
		UseExistingCluster: &exists, Config: &rest.Config{Host: "127.0.0.1:1"},
		CRDs: []*apiextensionsv1.CustomResourceDefinition{{ObjectMeta: metav1.ObjectMeta{Name: "greetings.test.berth.dev"}}},
	}
	_, err := env.Start()
	require.ErrorContains(t, err, "connection refused")
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestUsersAreSignedByTheClustersAuthority(t *testing.T) {
	dir := t.TempDir()
	cert, key, err := servingCertificate("localhost") // any authority
	require.NoError(t, err)
	for name, data := range map[string][]byte{"ca.crt": cert, "ca.key": key} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	got, _, err := clientCertificate(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), User{Name: "anna", Groups: []string{"system:masters"}})
	require.NoError(t, err)
	block, _ := pem.Decode(got)
	parsed, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.Equal(t, "anna", parsed.Subject.CommonName)
	require.Equal(t, []string{"system:masters"}, parsed.Subject.Organization)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, parsed.ExtKeyUsage)
	block, _ = pem.Decode(cert)
	authority, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.NoError(t, parsed.CheckSignatureFrom(authority))
	_, _, err = clientCertificate(filepath.Join(dir, "missing"), filepath.Join(dir, "ca.key"), User{Name: "anna"})
	require.ErrorContains(t, err, "authority")
}
