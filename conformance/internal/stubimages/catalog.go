package stubimages

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// Busybox is the name of the image with a shell and little else.
func Busybox() string { return imageutils.GetE2EImage(imageutils.BusyBox) }

// searchPath is PATH in every image, as upstream's have it.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// recipe describes one image: a layer over the layers of another recipe.
type recipe struct {
	ids []imageutils.ImageID
	// on is the recipe below: "" is an empty image.
	on string
	// programs are Debian's: name in the image to name in the packages.
	programs map[string]string
	// built are programs of build.sh: name in the image to name of the program.
	built map[string]string
	// files are upstream's data: name in the image to name below test/images.
	files map[string]string
	// extra adds anything else.
	extra  func(*oci.Tree)
	config ocispec.ImageConfig
}

// networkTools are those of agnhost. The wget of Debian's busybox crashes if it is given a timeout.
var networkTools = map[string]string{
	"/usr/bin/curl": "/usr/bin/curl", "/bin/wget": "/usr/bin/wget", "/bin/nc": "/bin/nc.openbsd", "/bin/ss": "/bin/ss", "/bin/ip": "/bin/ip",
	"/usr/bin/ipcs": "/usr/bin/ipcs", "/usr/bin/ipcmk": "/usr/bin/ipcmk", "/usr/bin/ipcrm": "/usr/bin/ipcrm",
	"/usr/bin/dig": "/usr/bin/dig", "/usr/bin/getent": "/usr/bin/getent", "/usr/bin/iperf": "/usr/bin/iperf", "/usr/bin/unshare": "/usr/bin/unshare",
}

// recipes are all images but the base. The name of a recipe is for other recipes only.
func recipes() map[string]recipe {
	return map[string]recipe{
		"busybox": {ids: ids(imageutils.BusyBox), on: "base", config: ocispec.ImageConfig{Cmd: []string{"sh"}}},
		"agnhost": {
			ids: ids(imageutils.Agnhost, imageutils.AgnhostPrev), on: "base", programs: networkTools,
			built: map[string]string{"/agnhost": "agnhost", "/coredns": "coredns"},
			files: map[string]string{
				"/localhost.crt": "agnhost/porter/localhost.crt", "/localhost.key": "agnhost/porter/localhost.key",
			},
			extra: func(t *oci.Tree) {
				t.Symlink("/agnhost-2", "agnhost")
				t.Dir("/uploads", 0o755)
				t.Dir("/home/user-defined-in-image", 0o755)
				t.File("/etc/passwd", 0o644, []byte(imagePasswd))
				t.File("/etc/group", 0o644, []byte(imageGroup))
				t.File("/etc/wgetrc", 0o644, []byte("tries = 1\n")) // as busybox's
			},
			config: ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		},
		"kitten": {
			ids: ids(imageutils.Kitten), on: "agnhost",
			files:  map[string]string{"/kitten.jpg": "kitten/html/kitten.jpg", "/data.json": "kitten/html/data.json"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		},
		"nautilus": {
			ids: ids(imageutils.Nautilus), on: "agnhost",
			files:  map[string]string{"/nautilus.jpg": "nautilus/html/nautilus.jpg", "/data.json": "nautilus/html/data.json"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		},
		"nonewprivs": {
			ids: ids(imageutils.Nonewprivs), on: "base", built: map[string]string{"/usr/local/bin/nnp": "nonewprivs"},
			config: ocispec.ImageConfig{Cmd: []string{"nnp"}},
		},
		"nonroot": {
			ids: ids(imageutils.NonRoot), on: "base", config: ocispec.ImageConfig{User: "1234", Cmd: []string{"sh"}},
		},
		"ipc-utils": {
			ids: ids(imageutils.IpcUtils), on: "base", config: ocispec.ImageConfig{Cmd: []string{"sh"}},
			programs: map[string]string{
				"/usr/bin/ipcs": "/usr/bin/ipcs", "/usr/bin/ipcmk": "/usr/bin/ipcmk", "/usr/bin/ipcrm": "/usr/bin/ipcrm",
			},
		},
		"glibc-dns": {
			ids: ids(imageutils.GlibcDnsTesting), on: "base", config: ocispec.ImageConfig{Cmd: []string{"bash"}},
			programs: map[string]string{
				"/usr/bin/dig": "/usr/bin/dig", "/usr/bin/nslookup": "/usr/bin/nslookup", "/usr/bin/getent": "/usr/bin/getent",
				"/bin/hostname": "/bin/hostname",
			},
		},
		"iptables": {
			ids: ids(imageutils.DistrolessIptables), on: "base", programs: map[string]string{"/usr/sbin/conntrack": "/usr/sbin/conntrack"},
		},
		"nginx": {
			ids: ids(imageutils.Nginx, imageutils.NginxNew), on: "base",
			programs: map[string]string{"/usr/sbin/nginx": "/usr/sbin/nginx"}, extra: addNginx,
			config: ocispec.ImageConfig{Cmd: []string{"nginx", "-g", "daemon off;"}, StopSignal: "SIGQUIT"},
		},
		"perl": {
			ids: ids(imageutils.Perl), on: "base", programs: map[string]string{"/usr/bin/perl": "/usr/bin/perl"},
			config: ocispec.ImageConfig{Cmd: []string{"perl"}},
		},
		"pause": {
			ids: ids(imageutils.Pause), built: map[string]string{"/pause": pauseProgram},
			config: ocispec.ImageConfig{User: "65535:65535", Entrypoint: []string{"/pause"}},
		},
		// The suite names an older release; this one is of the suite's own version.
		"sample-apiserver": {
			ids: ids(imageutils.APIServer), on: "base", built: map[string]string{"/sample-apiserver": "sample-apiserver"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/sample-apiserver"}},
		},
		"etcd": {
			ids: ids(imageutils.Etcd), on: "base", built: map[string]string{"/usr/local/bin/etcd": "etcd"},
			config: ocispec.ImageConfig{Cmd: []string{"etcd"}},
		},
		"regression-issue-74839": {
			ids: ids(imageutils.RegressionIssue74839), on: "base",
			built:  map[string]string{"/regression-issue-74839": "regression-issue-74839"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/regression-issue-74839"}},
		},
		"resource-consumer": {
			ids: ids(imageutils.ResourceConsumer), on: "base",
			programs: map[string]string{"/usr/bin/stress": "/usr/bin/stress"},
			built:    map[string]string{"/consumer": "resource-consumer", "/consume-cpu/consume-cpu": "consume-cpu"},
			config:   ocispec.ImageConfig{Entrypoint: []string{"/consumer"}},
		},
		// The sidecars are newer releases than those that the suite names: the ones that the module proxy has.
		"csi-attacher":    sidecar("csi-attacher", "csi-attacher"),
		"csi-provisioner": sidecar("csi-provisioner", "csi-provisioner"),
		"csi-resizer":     sidecar("csi-resizer", "csi-resizer"),
		"csi-snapshotter": sidecar("csi-snapshotter", "csi-snapshotter"),
		"csi-registrar":   sidecar("csi-node-driver-registrar", "csiregistrar"),
		"hostpathplugin":  sidecar("hostpathplugin", "hostpathplugin"),
		"busybox-of-mock": {ids: named("busybox"), on: "base", config: ocispec.ImageConfig{Cmd: []string{"sh"}}},
	}
}

// sidecar is the recipe of an image of the manifests of CSI drivers: nothing but one program of build.sh.
func sidecar(image, program string) recipe {
	return recipe{
		ids: named(image), built: map[string]string{"/" + program: program},
		config: ocispec.ImageConfig{Entrypoint: []string{"/" + program}},
	}
}

// named returns the images of that name which only the manifests of CSI drivers have: they have no constant, and their ids are higher than
// all that have one. An image may be there in several versions.
func named(name string) []imageutils.ImageID {
	byImage := make(map[string]imageutils.ImageID)
	for id, config := range imageutils.GetImageConfigs() {
		image := config.GetE2EImage()
		if id > imageutils.VolumeISCSIServer && strings.HasPrefix(image[strings.LastIndex(image, "/")+1:], name+":") {
			byImage[image] = id
		}
	}
	return slices.Sorted(maps.Values(byImage))
}

func ids(list ...imageutils.ImageID) []imageutils.ImageID { return list }

// pauseProgram stands for [Sources.Pause] among the built programs.
const pauseProgram = "pause"

// setIDPrograms have the set-user-ID bit: a spec checks that it has no effect.
var setIDPrograms = []string{"/usr/local/bin/nnp"}

const nginxConfig = `worker_processes 1;
error_log /dev/stderr warn;
pid /tmp/nginx.pid;
events { worker_connections 256; }
http {
	access_log /dev/stdout;
	client_body_temp_path /tmp/nginx-body;
	proxy_temp_path /tmp/nginx-proxy;
	fastcgi_temp_path /tmp/nginx-fastcgi;
	uwsgi_temp_path /tmp/nginx-uwsgi;
	scgi_temp_path /tmp/nginx-scgi;
	server { listen 80; root /usr/share/nginx/html; }
}
`

func addNginx(tree *oci.Tree) {
	tree.File("/etc/nginx/nginx.conf", 0o644, []byte(nginxConfig))
	page := "<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head>" +
		"<body><h1>Welcome to nginx!</h1></body></html>\n"
	tree.File("/usr/share/nginx/html/index.html", 0o644, []byte(page))
	for _, dir := range []string{"/var/lib/nginx", "/var/log/nginx", "/usr/share/nginx/modules"} {
		tree.Dir(dir, 0o755)
	}
}

// Images builds all stub images. Some images of upstream's list have none, such as those of CSI drivers.
func (s Sources) Images() ([]oci.Image, error) {
	base, err := s.base()
	if err != nil {
		return nil, fmt.Errorf("build base image: %w", err)
	}
	lowest, err := base.Layer()
	if err != nil {
		return nil, fmt.Errorf("build base image: %w", err)
	}
	all := recipes()
	layers := map[string][][]byte{"": nil, "base": {lowest}}
	var images []oci.Image
	for _, name := range []string{
		"busybox", "agnhost", "kitten", "nautilus", "nonewprivs", "nonroot", "ipc-utils", "glibc-dns", "iptables", "nginx", "perl",
		"pause", "sample-apiserver", "etcd", "regression-issue-74839", "resource-consumer",
		"csi-attacher", "csi-provisioner", "csi-resizer", "csi-snapshotter", "csi-registrar", "hostpathplugin", "busybox-of-mock",
	} {
		layer, err := s.layer(all[name])
		if err != nil {
			return nil, fmt.Errorf("build image %q: %w", name, err)
		}
		layers[name] = append(slices.Clone(layers[all[name].on]), layer)
		config := all[name].config
		config.Env = []string{searchPath}
		for _, id := range all[name].ids {
			// Two names of the same image are one image to containerd, which reports one of them for all of its containers.
			config.Labels = map[string]string{ocispec.AnnotationRefName: imageutils.GetE2EImage(id)}
			images = append(images, oci.Image{Name: imageutils.GetE2EImage(id), Layers: layers[name], Config: config})
		}
	}
	return images, nil
}

func (s Sources) layer(r recipe) ([]byte, error) {
	tree := &oci.Tree{}
	if err := s.addPrograms(tree, r.programs); err != nil {
		return nil, err
	}
	for name, program := range r.built {
		source := filepath.Join(s.Programs, program)
		if program == pauseProgram {
			source = s.Pause
		}
		mode := int64(0o755)
		if slices.Contains(setIDPrograms, name) {
			mode = 0o6755
		}
		if err := tree.Copy(name, mode, source); err != nil {
			return nil, err
		}
	}
	for name, file := range r.files {
		if err := tree.Copy(name, 0o644, filepath.Join(s.Upstream, file)); err != nil {
			return nil, err
		}
	}
	if r.extra != nil {
		r.extra(tree)
	}
	return tree.Layer()
}
