package envvars

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/container"
)

func TestExpand(t *testing.T) {
	known := map[string]string{"A": "x", "EMPTY": "", "REF": "$(A)"}
	lookup := func(name string) (string, bool) { v, ok := known[name]; return v, ok }
	for in, want := range map[string]string{
		"":               "",
		"plain":          "plain",
		"$(A)":           "x",
		"-$(A)-$(A)-":    "-x-x-",
		"$(NOT)":         "$(NOT)",
		"$(EMPTY)":       "",
		"$(REF)":         "$(A)", // a value is not expanded again
		"$$(A)":          "$(A)",
		"$$$(A)":         "$x",
		"$$$$(A)":        "$$(A)",
		"$A":             "$A",
		"$":              "$",
		"a$":             "a$",
		"$(A":            "$(A",
		"$($(A)":         "$($(A)", // the name is "$(A"
		"$()":            "$()",
		"${A}":           "${A}",
		"100% $5 $(A)$$": "100% $5 x$",
	} {
		require.Equal(t, want, Expand(in, lookup), in)
	}
}

type objects struct {
	maps    map[string]map[string]string
	secrets map[string]map[string][]byte
}

var _ Objects = objects{}

func (o objects) ConfigMap(_ context.Context, pod *corev1.Pod, name string) (*corev1.ConfigMap, error) {
	data, ok := o.maps[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}, Data: data}, nil
}

func (o objects) Secret(_ context.Context, _ *corev1.Pod, name string) (*corev1.Secret, error) {
	data, ok := o.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return &corev1.Secret{Data: data}, nil
}

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: ports},
	}
}

func inputs(c *corev1.Container) Inputs {
	c.Name = "c"
	return Inputs{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u1",
				Labels: map[string]string{"b": "2", "a": "1\n"}, Annotations: map[string]string{"Note": "n"}},
			Spec: corev1.PodSpec{NodeName: "node", ServiceAccountName: "sa", EnableServiceLinks: ptr.To(false)},
		},
		Container: c,
		PodIPs:    []string{"10.0.0.1", "fd00::1"}, HostIPs: []string{"192.0.2.1"},
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("1Gi")},
		Objects: objects{
			maps:    map[string]map[string]string{"m": {"k": "v", "A": "from map"}},
			secrets: map[string]map[string][]byte{"s": {"k": []byte("hidden"), "nul": []byte("a\x00b")}},
		},
	}
}

func TestBuildOrder(t *testing.T) {
	in := inputs(&corev1.Container{
		EnvFrom: []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}},
			{Prefix: "P_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: ptr.To(true)}},
		},
		Env: []corev1.EnvVar{
			{Name: "A", Value: "own"},
			{Name: "B", Value: "$(A) $(P_k) $(LATER) $(KUBERNETES_SERVICE_HOST)"},
			{Name: "LATER", Value: "$$(A)"},
			{Name: "KUBERNETES_SERVICE_PORT", Value: "mine"},
			{Name: "EMPTY"},
		},
	})
	in.Objects.(objects).secrets["s"] = map[string][]byte{"k": []byte("hidden")}
	in.Services = []*corev1.Service{service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443})}
	got, err := Build(t.Context(), in)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]Var{
		{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
		{"KUBERNETES_SERVICE_PORT_HTTPS", "443"},
		{"KUBERNETES_PORT", "tcp://10.96.0.1:443"},
		{"KUBERNETES_PORT_443_TCP", "tcp://10.96.0.1:443"},
		{"KUBERNETES_PORT_443_TCP_PROTO", "tcp"},
		{"KUBERNETES_PORT_443_TCP_PORT", "443"},
		{"KUBERNETES_PORT_443_TCP_ADDR", "10.96.0.1"},
		{"A", "own"},
		{"k", "v"},
		{"P_k", "hidden"},
		{"B", "own hidden $(LATER) 10.96.0.1"},
		{"LATER", "$(A)"},
		{"KUBERNETES_SERVICE_PORT", "mine"},
		{"EMPTY", ""},
	}, got))
}

func TestFromServices(t *testing.T) {
	port := corev1.ServicePort{Port: 80}
	all := []*corev1.Service{
		service("default", "kubernetes", "10.96.0.1", port), service("ns", "my-db", "10.96.0.2", corev1.ServicePort{Name: "a-b", Port: 53, Protocol: "UDP"}),
		service("ns", "headless", "None", port), service("ns", "pending", "", port), service("other", "far", "10.96.0.3", port),
		service("default", "near", "10.96.0.4", port),
	}
	hosts := func(env []Var) map[string]string {
		found := map[string]string{}
		for _, v := range env {
			if name, ok := cutSuffix(v.Name, "_SERVICE_HOST"); ok {
				found[name] = v.Value
			}
		}
		return found
	}
	require.Equal(t, map[string]string{"KUBERNETES": "10.96.0.1"}, hosts(FromServices(all, "ns", false)))
	withLinks := FromServices(all, "ns", true)
	require.Equal(t, map[string]string{"KUBERNETES": "10.96.0.1", "MY_DB": "10.96.0.2"}, hosts(withLinks))
	require.Contains(t, withLinks, Var{"MY_DB_SERVICE_PORT_A_B", "53"})
	require.Contains(t, withLinks, Var{"MY_DB_PORT_53_UDP_PROTO", "udp"})
	own := append(all, service("ns", "kubernetes", "10.96.0.9", port))
	require.Equal(t, "10.96.0.9", hosts(FromServices(own, "ns", true))["KUBERNETES"])
	require.Equal(t, "10.96.0.1", hosts(FromServices(own, "ns", false))["KUBERNETES"])
}

func cutSuffix(s, suffix string) (string, bool) {
	if len(s) < len(suffix) || s[len(s)-len(suffix):] != suffix {
		return s, false
	}
	return s[:len(s)-len(suffix)], true
}

func TestBuildSources(t *testing.T) {
	volume := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("K='stolen'\n"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(volume, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "env"), []byte(
		"# comment\n\n  A='one' # more\nB='two\nlines'\nC= 'not this'\nD=''\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "bad"), []byte("A=plain\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "open"), []byte("A='never\nclosed\n"), 0o600))

	field := func(path string) corev1.EnvVarSource {
		return corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	amount := func(name, divisor string) corev1.EnvVarSource {
		ref := &corev1.ResourceFieldSelector{Resource: name}
		if divisor != "" {
			ref.Divisor = resource.MustParse(divisor)
		}
		return corev1.EnvVarSource{ResourceFieldRef: ref}
	}
	key := func(name, key string, optional bool) corev1.EnvVarSource {
		return corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
	}
	secret := func(name, key string, optional bool) corev1.EnvVarSource {
		return corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
	}
	file := func(path, key string, optional bool) corev1.EnvVarSource {
		return corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: path, Key: key, Optional: &optional}}
	}
	const unset = "(unset)"
	for name, c := range map[string]struct {
		source corev1.EnvVarSource
		want   string
		fault  string
	}{
		"name":              {field("metadata.name"), "p", ""},
		"namespace":         {field("metadata.namespace"), "ns", ""},
		"uid":               {field("metadata.uid"), "u1", ""},
		"labels":            {field("metadata.labels"), "a=\"1\\n\"\nb=\"2\"", ""},
		"label":             {field("metadata.labels['b']"), "2", ""},
		"no such label":     {field("metadata.labels['z']"), "", ""},
		"bad label":         {field("metadata.labels['z z']"), "", "invalid key"},
		"annotation":        {field("metadata.annotations['Note']"), "n", ""},
		"node":              {field("spec.nodeName"), "node", ""},
		"service account":   {field("spec.serviceAccountName"), "sa", ""},
		"pod IP":            {field("status.podIP"), "10.0.0.1", ""},
		"pod IPs":           {field("status.podIPs"), "10.0.0.1,fd00::1", ""},
		"host IP":           {field("status.hostIP"), "192.0.2.1", ""},
		"host IPs":          {field("status.hostIPs"), "192.0.2.1", ""},
		"unknown field":     {field("status.phase"), "", `fieldPath "status.phase"`},
		"unknown subscript": {field("spec.x['y']"), "", "only metadata.labels"},

		"limit, rounded up":       {amount("limits.cpu", ""), "2", ""},
		"limit in millis":         {amount("limits.cpu", "1m"), "1500", ""},
		"limit of memory":         {amount("limits.memory", "1Mi"), "1024", ""},
		"request":                 {amount("requests.cpu", "1m"), "100", ""},
		"request that is not set": {amount("requests.memory", ""), "0", ""},
		"huge pages":              {amount("limits.hugepages-2Mi", "1Mi"), "4", ""},
		"unknown resource":        {amount("limits.gpu", ""), "", `"limits.gpu"`},
		"unknown kind":            {amount("wishes.cpu", ""), "", "neither requests nor limits"},

		"map key":               {key("m", "k", false), "v", ""},
		"no such map":           {key("none", "k", false), "", `configmaps "none" not found`},
		"no such map, optional": {key("none", "k", true), unset, ""},
		"no such key":           {key("m", "z", false), "", "couldn't find key z in ConfigMap ns/m"},
		"no such key, optional": {key("m", "z", true), unset, ""},
		"secret key":            {secret("s", "k", false), "hidden", ""},
		"secret with a NUL":     {secret("s", "nul", false), "", "NUL byte"},
		"no such secret":        {secret("none", "k", false), "", `secrets "none" not found`},
		"no such secret key":    {secret("s", "z", false), "", "couldn't find key z in Secret ns/s"},
		"no secret, optional":   {secret("none", "z", true), unset, ""},

		"file":                    {file("env", "A", false), "one", ""},
		"file, several lines":     {file("env", "B", false), "two\nlines", ""},
		"file, blank behind =":    {file("env", "C", false), "", ""},
		"file, empty":             {file("env", "D", false), "", ""},
		"file, no such key":       {file("env", "Z", false), "", `couldn't find key "Z"`},
		"file, key optional":      {file("env", "Z", true), unset, ""},
		"file absent":             {file("none", "A", false), "", `couldn't find key "A"`},
		"file absent, optional":   {file("none", "A", true), unset, ""},
		"file without quotes":     {file("bad", "A", false), "", "single quotes"},
		"file with an open quote": {file("open", "A", false), "", "no closing quote"},
		"link out of the volume":  {file("link", "K", true), unset, ""},
		"way out of the volume":   {file("../../../etc/passwd", "K", true), unset, ""},
		"no source":               {corev1.EnvVarSource{}, "", "names no source"},
	} {
		t.Run(name, func(t *testing.T) {
			in := inputs(&corev1.Container{Env: []corev1.EnvVar{{Name: "X", ValueFrom: &c.source}}})
			in.Container.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
			in.Container.Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
			in.VolumePaths = map[string]string{"v": volume}
			got, err := Build(t.Context(), in)
			if c.fault != "" {
				require.ErrorContains(t, err, c.fault)
				var config *container.ConfigError
				require.ErrorAs(t, err, &config)
				return
			}
			require.NoError(t, err)
			if c.want == unset {
				require.Empty(t, got)
				return
			}
			require.Equal(t, []Var{{"X", c.want}}, got)
		})
	}
}

func TestResourceValueOfPodAndOthers(t *testing.T) {
	other := corev1.Container{Name: "o", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("3")}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c"}, other},
		Resources:  &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("2")}},
	}}
	got, err := ResourceValue(pod, &pod.Spec.Containers[0], &corev1.ResourceFieldSelector{Resource: "limits.cpu"},
		corev1.ResourceList{"cpu": resource.MustParse("8")})
	require.NoError(t, err)
	require.Equal(t, "2", got, "the Pod's own limit comes before the node's")
	got, err = ResourceValue(pod, &pod.Spec.Containers[0], &corev1.ResourceFieldSelector{Resource: "limits.cpu", ContainerName: "o"}, nil)
	require.NoError(t, err)
	require.Equal(t, "3", got)
	_, err = ResourceValue(pod, &pod.Spec.Containers[0], &corev1.ResourceFieldSelector{Resource: "limits.cpu", ContainerName: "z"}, nil)
	require.ErrorContains(t, err, `no container "z"`)
}

func TestBuildWithoutAPI(t *testing.T) {
	in := inputs(&corev1.Container{EnvFrom: []corev1.EnvFromSource{
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}})
	in.Objects = nil
	_, err := Build(t.Context(), in)
	require.ErrorContains(t, err, "without an API server")
}
