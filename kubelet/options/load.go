package options

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/internal/yamldoc"
	"github.com/berth-dev/berth/kubelet/settings"
)

// dropInSuffix is how the name of a drop-in file ends.
const dropInSuffix = ".conf"

// ReadFile reads a configuration file and sets the defaults of what it leaves open. Paths in it are relative to its directory. It returns
// the names of the fields that the file has, too, sorted. The file is read once: it may be a pipe.
func ReadFile(path string) (*settings.Configuration, []string, error) {
	c, text, err := decodeFile(path)
	if err != nil {
		return nil, nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, nil, fmt.Errorf("read configuration file %q: %w", path, err)
	}
	if c.EvictionHard == nil {
		c.EvictionHard = settings.DefaultEvictionHard()
	}
	mergeEvictionDefaults(c)
	settings.SetDefaults(c)
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration file %q: %w", path, err)
	}
	for _, field := range paths(c) {
		if *field != "" && !filepath.IsAbs(*field) {
			*field = filepath.Join(filepath.Dir(absolute), *field)
		}
	}
	return c, slices.Sorted(maps.Keys(fields)), nil
}

// mergeEvictionDefaults adds the default thresholds of the signals that have none, if mergeDefaultEvictionSettings asks for it.
func mergeEvictionDefaults(c *settings.Configuration) {
	if c.EvictionHard == nil || c.MergeDefaultEvictionSettings == nil || !*c.MergeDefaultEvictionSettings {
		return
	}
	for signal, threshold := range settings.DefaultEvictionHard() {
		if _, ok := c.EvictionHard[signal]; !ok {
			c.EvictionHard[signal] = threshold
		}
	}
}

// mergeDir merges the drop-in files below dir into the configuration, in the order of their names.
func mergeDir(c *settings.Configuration, dir string) (*settings.Configuration, error) {
	merged, err := encode(c)
	if err != nil {
		return nil, fmt.Errorf("merge drop-in files of %q: %w", dir, err)
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("read drop-in directory %q: %w", dir, err)
		}
		if entry.IsDir() || !strings.HasSuffix(entry.Name(), dropInSuffix) {
			return nil
		}
		_, text, err := decodeFile(path)
		if err != nil {
			return err
		}
		if merged, err = jsonpatch.MergePatch(merged, text); err != nil {
			return fmt.Errorf("merge drop-in file %q: %w", path, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := &settings.Configuration{}
	if err := json.Unmarshal(merged, out); err != nil {
		return nil, fmt.Errorf("merge drop-in files of %q: %w", dir, err)
	}
	mergeEvictionDefaults(out) // if a drop-in file asks for it, which upstream's kubelet ignores
	settings.SetDefaults(out)
	return out, nil
}

// encode is json.Marshal, which leaves out what is empty, with those fields whose default is not empty.
func encode(c *settings.Configuration) ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	if c.EnforceNodeAllocatable != nil && len(c.EnforceNodeAllocatable) == 0 {
		fields["enforceNodeAllocatable"] = json.RawMessage("[]")
	}
	if c.EvictionHard != nil && len(c.EvictionHard) == 0 {
		fields["evictionHard"] = json.RawMessage("{}")
	}
	return json.Marshal(fields)
}

// decodeFile decodes a configuration file strictly. It returns its text as JSON, too.
func decodeFile(path string) (*settings.Configuration, []byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration file: %w", err) // it names the file
	}
	c, err := decode(text)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration file %q: %w", path, err)
	}
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration file %q: %w", path, err)
	}
	return c, data, nil
}

// decode decodes a KubeletConfiguration, in YAML or JSON. An unknown or repeated field is an error that names it.
func decode(text []byte) (*settings.Configuration, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, errors.New("the file is empty: want a KubeletConfiguration")
	}
	if err := yamldoc.CheckOne(text); err != nil {
		return nil, err
	}
	if err := quantity.CheckDocument[settings.Configuration](text); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := kubeletconfig.AddToScheme(scheme); err != nil {
		return nil, err
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	object, _, err := codecs.UniversalDeserializer().Decode(text, nil, nil)
	switch {
	case runtime.IsMissingKind(err), runtime.IsMissingVersion(err):
		return nil, fmt.Errorf("it has no apiVersion and kind: want %s, KubeletConfiguration", kubeletconfig.SchemeGroupVersion)
	case runtime.IsNotRegisteredError(err):
		return nil, fmt.Errorf("%w: want %s, KubeletConfiguration", err, kubeletconfig.SchemeGroupVersion)
	case err != nil:
		return nil, err
	}
	c, ok := object.(*settings.Configuration)
	if !ok {
		return nil, fmt.Errorf("it is a %s: want a KubeletConfiguration", object.GetObjectKind().GroupVersionKind().Kind)
	}
	return c, nil
}
