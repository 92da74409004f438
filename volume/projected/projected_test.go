package projected_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/projected"
	"github.com/berth-dev/berth/volume/testsuite"
)

// cluster is the API objects that the tests project.
type cluster struct {
	secret    *corev1.Secret
	configMap *corev1.ConfigMap
	tokenErr  error
}

var (
	_ projected.Objects = (*cluster)(nil)
	_ projected.Tokens  = (*cluster)(nil)
)

func newCluster() *cluster {
	return &cluster{
		secret:    &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"password": []byte("pw")}},
		configMap: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0, 1}}},
	}
}

func (c *cluster) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name != c.secret.Name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	return c.secret, nil
}

func (c *cluster) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != c.configMap.Name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return c.configMap, nil
}

func (c *cluster) Token(_ context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error) {
	return "token for " + pod.Name + " to " + p.Audience, c.tokenErr
}

func (c *cluster) deps() projected.Deps {
	return projected.Deps{Objects: c, Tokens: c, Mounter: mounts.Syscalls{}, NodeAllocatable: func() corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3500m"), corev1.ResourceMemory: resource.MustParse("8Gi")}
	}}
}

func (c *cluster) plugin(t *testing.T, source corev1.VolumeSource) *projected.Plugin {
	t.Helper()
	plugins, err := projected.New(c.deps())
	require.NoError(t, err)
	for _, plugin := range plugins {
		if plugin.CanSupport(volume.Spec{Volume: &corev1.Volume{VolumeSource: source}}) {
			return plugin
		}
	}
	t.Fatal("no plugin")
	return nil
}

func configMapSource(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func projectedSource(sources ...corev1.VolumeProjection) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}
}

func tokenSource(path string) corev1.VolumeProjection {
	return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: path, Audience: "api"}}
}

func fieldFile(path, field string) corev1.DownwardAPIVolumeFile {
	return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}
}

func TestContract(t *testing.T) {
	for name, source := range map[string]corev1.VolumeSource{
		"configMap":   configMapSource("c"),
		"secret":      {Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
		"downwardAPI": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{fieldFile("n", "metadata.name")}}},
		"projected":   projectedSource(tokenSource("token")),
		"empty":       projectedSource(),
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			testsuite.Run(t, testsuite.Subject{
				New: func(t *testing.T) volume.Plugin { return c.plugin(t, source) },
				Spec: func(*testing.T, string) volume.Spec {
					return volume.Spec{Name: "v", Volume: &corev1.Volume{Name: "v", VolumeSource: source}}
				},
			})
		})
	}
}

// volumeOf sets up a volume and gives its directory.
type projection struct {
	*cluster
	plugin  *projected.Plugin
	request volume.Request
}

func newProjection(t *testing.T, source corev1.VolumeSource) *projection {
	t.Helper()
	c := newCluster()
	root := testsuite.Root(t)
	p := &projection{cluster: c, plugin: c.plugin(t, source)}
	p.request = volume.Request{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u", Labels: map[string]string{"app": "web", "a": `q"`}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")},
				Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi"),
					"hugepages-2Mi": resource.MustParse("4Mi")},
			}}}},
		},
		Spec: volume.Spec{Name: "v", Volume: &corev1.Volume{Name: "v", VolumeSource: source}},
		Dir:  volume.Dir(root, "u", p.plugin.Name(), "v"),
	}
	t.Cleanup(func() { require.NoError(t, p.plugin.TearDown(context.WithoutCancel(t.Context()), p.request.Dir)) })
	return p
}

func (p *projection) setUp(t *testing.T) error {
	t.Helper()
	mount, err := p.plugin.SetUp(t.Context(), p.request)
	if err == nil {
		require.True(t, mount.ReadOnly)
		require.Equal(t, p.request.Dir, mount.Path)
	}
	return err
}

// files is what the volume shows: content by path, with the mode before it.
func (p *projection) files(t *testing.T) map[string]string {
	t.Helper()
	got := make(map[string]string)
	root := filepath.Join(p.request.Dir, "..data")
	resolved, err := filepath.EvalSymlinks(root)
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(resolved, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		relative, _ := filepath.Rel(resolved, path)
		data, err := os.ReadFile(filepath.Join(p.request.Dir, relative))
		got[relative] = strings.TrimPrefix(info.Mode().String(), "-") + " " + string(data)
		return err
	}))
	return got
}

func TestFiles(t *testing.T) {
	optional := ptr.To(true)
	for _, test := range []struct {
		name   string
		source corev1.VolumeSource
		want   map[string]string
		err    string
	}{
		{name: "config map", source: configMapSource("c"),
			want: map[string]string{"a": "rw-r--r-- 1", "b": "rw-r--r-- 2", "bin": "rw-r--r-- \x00\x01"}},
		{name: "config map missing", source: configMapSource("x"), err: `configmaps "x" not found`},
		{name: "secret with items and modes", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "s", DefaultMode: ptr.To(int32(0o400)),
			Items: []corev1.KeyToPath{{Key: "password", Path: "x/y"}, {Key: "password", Path: "z", Mode: ptr.To(int32(0o777))}},
		}}, want: map[string]string{"x/y": "r-------- pw", "z": "rwxrwxrwx pw"}},
		{name: "missing key", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "s", Items: []corev1.KeyToPath{{Key: "nope", Path: "x"}},
		}}, err: `secret shop/s references non-existent key "nope"`},
		{name: "optional missing key", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "s", Items: []corev1.KeyToPath{{Key: "nope", Path: "x"}}, Optional: optional,
		}}, want: map[string]string{}},
		{name: "optional missing secret", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "x", Optional: optional,
		}}, want: map[string]string{}},
		{name: "path that leaves", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: "s", Items: []corev1.KeyToPath{{Key: "password", Path: "../x"}},
		}}, err: "must not contain"},
		{name: "projected", source: projectedSource(
			tokenSource("token"),
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "c"},
				Items: []corev1.KeyToPath{{Key: "a", Path: "conf/a"}}}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{fieldFile("ns", "metadata.namespace")}}},
		), want: map[string]string{"token": "rw-r--r-- token for web to api", "conf/a": "rw-r--r-- 1", "ns": "rw-r--r-- shop"}},
		{name: "all that is missing", source: projectedSource(
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "no-map"}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "no-secret"}}},
		), err: "\"no-map\" not found\nget secret shop/no-secret"},
		{name: "unsupported source", source: projectedSource(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}),
			err: "spec.volumes[v].projected.sources[0].clusterTrustBundle"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProjection(t, test.source)
			err := p.setUp(t)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.NotContains(t, err.Error(), "pw", "an error must not show secrets")
				return
			}
			require.NoError(t, err)
			if diff := cmp.Diff(test.want, p.files(t)); diff != "" {
				t.Fatalf("files differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDownwardFields(t *testing.T) {
	for field, want := range map[string]string{
		"metadata.name": "web", "metadata.namespace": "shop", "metadata.uid": "u", "metadata.annotations": "",
		"metadata.labels": "a=\"q\\\"\"\napp=\"web\"", "metadata.labels['app']": "web", "metadata.annotations['x']": "",
		"limits.cpu": "2", "limits.cpu/1m": "1500", "limits.memory": "8589934592", "limits.memory/1Gi": "8",
		"requests.memory/1Mi": "10", "requests.memory/3Mi": "4", "requests.cpu": "0", "requests.hugepages-2Mi/1Mi": "4",
	} {
		t.Run(field, func(t *testing.T) {
			item := fieldFile("f", field)
			if strings.HasPrefix(field, "limits") || strings.HasPrefix(field, "requests") {
				name, divisor, has := strings.Cut(field, "/")
				ref := &corev1.ResourceFieldSelector{ContainerName: "main", Resource: name}
				if has {
					ref.Divisor = resource.MustParse(divisor)
				}
				item = corev1.DownwardAPIVolumeFile{Path: "f", ResourceFieldRef: ref}
			}
			p := newProjection(t, corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{item}}})
			require.NoError(t, p.setUp(t))
			require.Equal(t, map[string]string{"f": "rw-r--r-- " + want}, p.files(t))
		})
	}
	for _, field := range []string{"spec.nodeName", "metadata.labels['x", ""} {
		p := newProjection(t, corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{fieldFile("f", field)}}})
		require.ErrorContains(t, p.setUp(t), "is not supported")
	}
}

func TestTokenIsForItsReaderOnly(t *testing.T) {
	user, gid := int64(1001), int64(2002)
	for _, test := range []struct {
		name     string
		user     *int64
		gid      *int64
		mode     os.FileMode
		uid, own int64
	}{
		{"no user named", nil, nil, 0o644, 0, 0},
		{"user", &user, nil, 0o600, user, 0},
		{"group", nil, &gid, 0o640, 0, gid},
		{"both", &user, &gid, 0o640, user, gid},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProjection(t, projectedSource(tokenSource("token")))
			p.request.FSGroup = test.gid
			p.request.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: test.user}
			require.NoError(t, p.setUp(t))
			info, err := os.Stat(filepath.Join(p.request.Dir, "token"))
			require.NoError(t, err)
			stat := info.Sys().(*syscall.Stat_t)
			require.Equal(t, test.mode, info.Mode())
			require.EqualValues(t, test.uid, stat.Uid)
			require.EqualValues(t, test.own, stat.Gid)
		})
	}
}

func TestMountPointsOfOtherVolumes(t *testing.T) {
	for name, source := range map[string]corev1.VolumeSource{
		"configMap":   configMapSource("c"),
		"secret":      {Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
		"downwardAPI": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{fieldFile("n", "metadata.name")}}},
		"projected":   projectedSource(tokenSource("token")),
	} {
		t.Run(name, func(t *testing.T) {
			p := newProjection(t, source)
			p.request.Pod.Spec.InitContainers = []corev1.Container{{Name: "init", VolumeMounts: []corev1.VolumeMount{
				{Name: "v", MountPath: "/etc"}, {Name: "other", MountPath: "etc/x//y/"}, {Name: "more", MountPath: "/etc/x/y/z"},
				{Name: "more", MountPath: "/etcetera"}, {Name: "more", MountPath: "/etc/x/yes"},
			}}}
			p.request.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
				{Name: "other", MountPath: "/conf/sub"}, {Name: "v", MountPath: "/conf"},
				{Name: "v", MountPath: "/part", SubPath: "n"}, {Name: "other", MountPath: "/part/not"},
			}
			for range 2 { // the second time as a refresh
				require.NoError(t, p.setUp(t))
				for dir, exists := range map[string]bool{"sub": true, "x/y": true, "x/yes": true, "x/y/z": false, "etera": false, "not": false} {
					_, err := os.Stat(filepath.Join(p.request.Dir, dir))
					require.Equal(t, exists, err == nil, "%s: %v", dir, err)
				}
			}
			require.NotEmpty(t, p.files(t))
		})
	}
	p := newProjection(t, configMapSource("c"))
	p.request.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/conf"}, {Name: "other", MountPath: "/conf/a"}}
	require.ErrorContains(t, p.setUp(t), "file exists", "the volume has a file of that name")
}

func TestWhatMayBeSecretIsInMemory(t *testing.T) {
	for name, test := range map[string]struct {
		source corev1.VolumeSource
		memory bool
	}{
		"secret":    {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, true},
		"projected": {projectedSource(tokenSource("t")), true},
		"configMap": {configMapSource("c"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProjection(t, test.source)
			require.NoError(t, p.setUp(t))
			is, err := mounts.Syscalls{}.IsMountPoint(p.request.Dir)
			require.NoError(t, err)
			require.Equal(t, test.memory, is)
			info, err := os.Stat(p.request.Dir)
			require.NoError(t, err)
			require.Equal(t, os.ModeDir|0o755, info.Mode())
			if test.memory {
				var stat unix.Statfs_t
				require.NoError(t, unix.Statfs(p.request.Dir, &stat))
				require.EqualValues(t, unix.TMPFS_MAGIC, stat.Type)
			}
		})
	}
}

func TestRefreshFollowsObjectsAndKeepsOldFilesOnFailure(t *testing.T) {
	p := newProjection(t, projectedSource(
		corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
		tokenSource("token")))
	require.NoError(t, p.setUp(t))
	p.configMap = &corev1.ConfigMap{ObjectMeta: p.configMap.ObjectMeta, Data: map[string]string{"a": "new"}}
	require.NoError(t, p.plugin.Refresh(t.Context(), p.request))
	want := map[string]string{"a": "rw-r--r-- new", "token": "rw-r--r-- token for web to api"}
	require.Equal(t, want, p.files(t))
	p.configMap.Data["a"] = "newer"
	p.tokenErr = errors.New("no token today")
	require.ErrorIs(t, p.plugin.Refresh(t.Context(), p.request), p.tokenErr)
	require.Equal(t, want, p.files(t))
}
