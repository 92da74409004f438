package envvars

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/container"
)

// Var is a resolved variable.
type Var struct {
	Name, Value string
}

// Objects returns the objects that a Pod's environment refers to. For an object that does not exist it returns an error
// for which apierrors.IsNotFound is true. The result must not be modified.
type Objects interface {
	ConfigMap(ctx context.Context, pod *corev1.Pod, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, pod *corev1.Pod, name string) (*corev1.Secret, error)
}

// Inputs are what a container's environment is built from.
type Inputs struct {
	Pod       *corev1.Pod
	Container *corev1.Container
	// PodIPs and HostIPs are the addresses of the Pod and the node, the primary one first.
	PodIPs, HostIPs []string
	// Allocatable is what the node can allocate: the default of a limit that is not set.
	Allocatable corev1.ResourceList
	// Services are all known Services, of any namespace.
	Services []*corev1.Service
	// Objects returns ConfigMaps and Secrets; it may be nil for a Pod that refers to none.
	Objects Objects
	// VolumePaths maps the names of the Pod's mounted volumes to their directories, for fileKeyRef.
	VolumePaths map[string]string
}

// Build resolves the container's environment: the variables of Services first, then envFrom, then env; a later variable
// replaces an earlier one of the same name. A value of env may refer to any variable before it. Errors are
// *container.ConfigError.
func Build(ctx context.Context, in Inputs) ([]Var, error) {
	b := &builder{in: in, values: map[string]string{}, services: map[string]string{}}
	links := ptr.Deref(in.Pod.Spec.EnableServiceLinks, true)
	services := FromServices(in.Services, in.Pod.Namespace, links)
	for _, v := range services {
		b.services[v.Name] = v.Value
	}
	for i := range in.Container.EnvFrom {
		if err := b.addFrom(ctx, &in.Container.EnvFrom[i]); err != nil {
			return nil, container.NewConfigError(err)
		}
	}
	for i := range in.Container.Env {
		v := &in.Container.Env[i]
		value, set, err := b.value(ctx, v)
		if err != nil {
			return nil, container.NewConfigError(err)
		}
		if set {
			b.set(v.Name, value)
		}
	}
	env := make([]Var, 0, len(b.order)+len(services))
	for _, v := range services {
		if _, replaced := b.values[v.Name]; !replaced {
			env = append(env, v)
		}
	}
	for _, name := range b.order {
		if strings.ContainsRune(b.values[name], 0) {
			return nil, container.NewConfigError(fmt.Errorf("set variable %q of container %q: the value contains a NUL byte, "+
				"which an environment cannot", name, in.Container.Name))
		}
		env = append(env, Var{name, b.values[name]})
	}
	return env, nil
}

// builder is the state of one call of Build.
type builder struct {
	in       Inputs
	services map[string]string
	values   map[string]string
	order    []string // names of values, in the order in which they were first set
}

func (b *builder) set(name, value string) {
	if _, ok := b.values[name]; !ok {
		b.order = append(b.order, name)
	}
	b.values[name] = value
}

func (b *builder) lookup(name string) (string, bool) {
	if value, ok := b.values[name]; ok {
		return value, true
	}
	value, ok := b.services[name]
	return value, ok
}

// addFrom adds all keys of a ConfigMap or a Secret.
func (b *builder) addFrom(ctx context.Context, source *corev1.EnvFromSource) error {
	switch {
	case source.ConfigMapRef != nil:
		ref := source.ConfigMapRef
		object, err := b.configMap(ctx, ref.Name, ref.Optional)
		if err != nil || object == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			b.set(source.Prefix+key, object.Data[key])
		}
	case source.SecretRef != nil:
		ref := source.SecretRef
		object, err := b.secret(ctx, ref.Name, ref.Optional)
		if err != nil || object == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			b.set(source.Prefix+key, string(object.Data[key]))
		}
	}
	return nil
}

// value resolves one variable of env; set is false for an optional one whose source does not exist.
func (b *builder) value(ctx context.Context, v *corev1.EnvVar) (value string, set bool, err error) {
	from := v.ValueFrom
	if v.Value != "" || from == nil {
		return Expand(v.Value, b.lookup), true, nil
	}
	switch {
	case from.FieldRef != nil:
		value, err = b.field(from.FieldRef)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = ResourceValue(b.in.Pod, b.in.Container, from.ResourceFieldRef, b.in.Allocatable)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		return b.configMapKey(ctx, from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return b.secretKey(ctx, from.SecretKeyRef)
	case from.FileKeyRef != nil:
		return b.fileKey(from.FileKeyRef)
	}
	return "", false, fmt.Errorf("read env %q of container %q: valueFrom names no source", v.Name, b.in.Container.Name)
}

// field resolves a fieldRef. The fields of status are those of the sandbox that the container will run in.
func (b *builder) field(ref *corev1.ObjectFieldSelector) (string, error) {
	ips := map[string][]string{
		"status.podIP": b.in.PodIPs, "status.podIPs": b.in.PodIPs,
		"status.hostIP": b.in.HostIPs, "status.hostIPs": b.in.HostIPs,
	}
	list, isStatus := ips[ref.FieldPath]
	if !isStatus {
		return FieldValue(b.in.Pod, ref.FieldPath)
	}
	if strings.HasSuffix(ref.FieldPath, "IPs") {
		return strings.Join(list, ","), nil
	}
	if len(list) == 0 {
		return "", nil
	}
	return list[0], nil
}

func (b *builder) configMapKey(ctx context.Context, ref *corev1.ConfigMapKeySelector) (string, bool, error) {
	object, err := b.configMap(ctx, ref.Name, ref.Optional)
	if err != nil || object == nil {
		return "", false, err
	}
	value, ok := object.Data[ref.Key]
	if !ok && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, b.in.Pod.Namespace, ref.Name)
	}
	return value, ok, nil
}

func (b *builder) secretKey(ctx context.Context, ref *corev1.SecretKeySelector) (string, bool, error) {
	object, err := b.secret(ctx, ref.Name, ref.Optional)
	if err != nil || object == nil {
		return "", false, err
	}
	value, ok := object.Data[ref.Key]
	if !ok && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, b.in.Pod.Namespace, ref.Name)
	}
	return string(value), ok, nil
}

func (b *builder) fileKey(ref *corev1.FileKeySelector) (string, bool, error) {
	volume, ok := b.in.VolumePaths[ref.VolumeName]
	if !ok {
		return "", false, fmt.Errorf("read fileKeyRef of container %q: volume %q is not mounted",
			b.in.Container.Name, ref.VolumeName)
	}
	value, found, err := readFile(volume, ref.Path, ref.Key)
	if err != nil {
		return "", false, err
	}
	if !found && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %q in file %q of volume %q", ref.Key, ref.Path, ref.VolumeName)
	}
	return value, found, nil
}

// configMap returns the ConfigMap; nil without an error means that it is optional and does not exist.
func (b *builder) configMap(ctx context.Context, name string, optional *bool) (*corev1.ConfigMap, error) {
	if b.in.Objects == nil {
		return nil, errNoObjects("configMap", b.in.Pod.Namespace, name)
	}
	object, err := b.in.Objects.ConfigMap(ctx, b.in.Pod, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil, nil
	}
	return object, err
}

// secret returns the Secret; nil without an error means that it is optional and does not exist.
func (b *builder) secret(ctx context.Context, name string, optional *bool) (*corev1.Secret, error) {
	if b.in.Objects == nil {
		return nil, errNoObjects("secret", b.in.Pod.Namespace, name)
	}
	object, err := b.in.Objects.Secret(ctx, b.in.Pod, name)
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil, nil
	}
	return object, err
}

var errStandalone = errors.New("the kubelet runs without an API server")

func errNoObjects(kind, namespace, name string) error {
	return fmt.Errorf("get %s \"%s/%s\": %w", kind, namespace, name, errStandalone)
}
