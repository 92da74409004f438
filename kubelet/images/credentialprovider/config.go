package credentialprovider

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation"
	configv1 "k8s.io/kubelet/config/v1"
	configv1alpha1 "k8s.io/kubelet/config/v1alpha1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/yamldoc"
)

const (
	configKind  = "CredentialProviderConfig"
	configGroup = "kubelet.config.k8s.io/"
	callGroup   = "credentialprovider.kubelet.k8s.io/"
)

// versions are the versions of both the configuration and the providers' interface. The earlier ones have no service account tokens.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

// Load reads the configuration: a file, or all .json, .yaml and .yml files of a directory in the order of their names.
// hash is one of all that was read, the same as Kubernetes' kubelet has in its metrics. An error names the file and the field.
func Load(name string) (providers []configv1.CredentialProvider, hash string, err error) {
	files, err := configFiles(name)
	if err != nil {
		return nil, "", fmt.Errorf("credential providers: %w", err)
	}
	sum := sha256.New() // its Write never fails
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, "", fmt.Errorf("credential providers: %w", err)
		}
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(data))))
		_, _ = sum.Write(data)
		found, err := decode(data)
		if err != nil {
			return nil, "", fmt.Errorf("credential providers: %s: %w", file, err)
		}
		providers = append(providers, found...)
	}
	if err := validate(providers); err != nil {
		return nil, "", fmt.Errorf("credential providers: %s: %w", name, err)
	}
	return providers, fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

// decode decodes a configuration, in YAML or JSON. A field that its version does not have, or has once, is an error that names it.
func decode(data []byte) ([]configv1.CredentialProvider, error) {
	if err := yamldoc.CheckOne(data); err != nil {
		return nil, err
	}
	// The decoder below takes YAML that begins with a brace for JSON.
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, err
	}
	version, ok := strings.CutPrefix(kind.APIVersion, configGroup)
	if kind.Kind != configKind || !ok || !slices.Contains(versions, version) {
		return nil, fmt.Errorf("kind %q of %q: want %s of %sv1", kind.Kind, kind.APIVersion, configKind, configGroup)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(configv1.AddToScheme(scheme), configv1beta1.AddToScheme(scheme), configv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	// Each field of an earlier version has the same name in v1.
	same, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var config configv1.CredentialProviderConfig
	if err := json.Unmarshal(same, &config); err != nil {
		return nil, err
	}
	return config.Providers, nil
}

// configFiles returns the configuration files at the path.
func configFiles(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
			files = append(files, filepath.Join(name, entry.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s contains no .json, .yaml or .yml file", name)
	}
	return files, nil
}

func validate(providers []configv1.CredentialProvider) error {
	if len(providers) == 0 {
		return errors.New("providers: the list is empty")
	}
	seen := map[string]bool{}
	var errs []error
	for i := range providers {
		p := &providers[i]
		if seen[p.Name] {
			errs = append(errs, fmt.Errorf("providers: duplicate name %q", p.Name))
		}
		seen[p.Name] = true
		if err := validateOne(p); err != nil {
			errs = append(errs, fmt.Errorf("provider %q: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

func validateOne(p *configv1.CredentialProvider) error {
	version, ok := strings.CutPrefix(p.APIVersion, callGroup)
	switch {
	case p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ \t\n"):
		return errors.New("name: want the name of a program in the providers' directory, without slashes and spaces")
	case !ok || !slices.Contains(versions, version):
		return fmt.Errorf("apiVersion %q: want %sv1", p.APIVersion, callGroup)
	case len(p.MatchImages) == 0:
		return errors.New("matchImages: the list is empty")
	case p.DefaultCacheDuration == nil:
		return errors.New("defaultCacheDuration is missing")
	case p.DefaultCacheDuration.Duration < 0:
		return errors.New("defaultCacheDuration is negative")
	}
	for _, pattern := range p.MatchImages {
		u, err := url.Parse("https://" + pattern)
		if err == nil {
			_, err = path.Match(u.Hostname(), "")
		}
		if err != nil || strings.Contains(pattern, "://") {
			return fmt.Errorf("matchImages: %q: want a host, optionally with a port and a path", pattern)
		}
	}
	if p.TokenAttributes != nil && version != versions[0] {
		return fmt.Errorf("tokenAttributes: programs of apiVersion %q get no token: want %s%s", p.APIVersion, callGroup, versions[0])
	}
	return validateToken(p.TokenAttributes)
}

func validateToken(t *configv1.ServiceAccountTokenAttributes) error {
	if t == nil {
		return nil
	}
	seen := map[string]bool{}
	for _, key := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
		if seen[key] {
			return fmt.Errorf("tokenAttributes: the annotation %q is listed twice", key)
		}
		seen[key] = true
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			return fmt.Errorf("tokenAttributes: no annotation has the key %q: %s", key, strings.Join(problems, "; "))
		}
	}
	switch {
	case t.ServiceAccountTokenAudience == "":
		return errors.New("tokenAttributes.serviceAccountTokenAudience is missing")
	case t.RequireServiceAccount == nil:
		return errors.New("tokenAttributes.requireServiceAccount is missing")
	case t.CacheType != configv1.TokenServiceAccountTokenCacheType &&
		t.CacheType != configv1.ServiceAccountServiceAccountTokenCacheType:
		return fmt.Errorf("tokenAttributes.cacheType %q: want Token or ServiceAccount", t.CacheType)
	case len(t.RequiredServiceAccountAnnotationKeys) > 0 && !*t.RequireServiceAccount:
		return errors.New("tokenAttributes: requiredServiceAccountAnnotationKeys require requireServiceAccount")
	}
	return nil
}
