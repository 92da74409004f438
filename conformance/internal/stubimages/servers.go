package stubimages

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// networkTools are those of agnhost. The wget of Debian's busybox crashes if it is given a timeout.
var networkTools = map[string]string{
	"/usr/bin/curl": "/usr/bin/curl", "/bin/wget": "/usr/bin/wget", "/bin/nc": "/bin/nc.openbsd", "/bin/ss": "/bin/ss", "/bin/ip": "/bin/ip",
	"/usr/bin/ipcs": "/usr/bin/ipcs", "/usr/bin/ipcmk": "/usr/bin/ipcmk", "/usr/bin/ipcrm": "/usr/bin/ipcrm",
	"/usr/bin/dig": "/usr/bin/dig", "/usr/bin/getent": "/usr/bin/getent", "/usr/bin/iperf": "/usr/bin/iperf", "/usr/bin/unshare": "/usr/bin/unshare",
}

// nfsPrograms are those that upstream's script starts a server with. The kernel's own server does the work.
var nfsPrograms = map[string]string{
	"/usr/sbin/rpc.mountd": "/usr/sbin/rpc.mountd", "/usr/sbin/rpc.nfsd": "/usr/sbin/rpc.nfsd", "/usr/sbin/exportfs": "/usr/sbin/exportfs",
	"/usr/sbin/rpc.statd": "/sbin/rpc.statd", "/usr/sbin/rpcbind": "/sbin/rpcbind", "/usr/sbin/rpcinfo": "/usr/sbin/rpcinfo",
}

// serverImages are the images of servers. Some of them are on the image of agnhost.
func serverImages() []recipe {
	return []recipe{
		{
			name: "agnhost", ids: ids(imageutils.Agnhost, imageutils.AgnhostPrev), on: "base", programs: networkTools,
			built: map[string]string{"/agnhost": "agnhost", "/coredns": "coredns"},
			files: map[string]string{
				"/localhost.crt": "agnhost/porter/localhost.crt", "/localhost.key": "agnhost/porter/localhost.key",
			},
			registry: map[string]string{"pause": "testing"}, // as upstream's fakeregistryserver/images.txt
			extra:    addUsers,
			config:   ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		},
		{
			name: "kitten", ids: ids(imageutils.Kitten), on: "agnhost",
			files:  map[string]string{"/kitten.jpg": "kitten/html/kitten.jpg", "/data.json": "kitten/html/data.json"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		},
		{
			name: "nautilus", ids: ids(imageutils.Nautilus), on: "agnhost",
			files:  map[string]string{"/nautilus.jpg": "nautilus/html/nautilus.jpg", "/data.json": "nautilus/html/data.json"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		},
		{
			name: "nginx", ids: ids(imageutils.Nginx, imageutils.NginxNew), on: "base",
			programs: map[string]string{"/usr/sbin/nginx": "/usr/sbin/nginx"}, extra: addNginx,
			config: ocispec.ImageConfig{Cmd: []string{"nginx", "-g", "daemon off;"}, StopSignal: "SIGQUIT"},
		},
		// The suite names an older release; this one is of the suite's own version.
		{
			name: "sample-apiserver", ids: ids(imageutils.APIServer), on: "base", built: map[string]string{"/sample-apiserver": "sample-apiserver"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/sample-apiserver"}},
		},
		{
			name: "etcd", ids: ids(imageutils.Etcd), on: "base", built: map[string]string{"/usr/local/bin/etcd": "etcd"},
			config: ocispec.ImageConfig{Cmd: []string{"etcd"}},
		},
		{
			name: "resource-consumer", ids: ids(imageutils.ResourceConsumer), on: "base",
			programs: map[string]string{"/usr/bin/stress": "/usr/bin/stress"},
			built:    map[string]string{"/consumer": "resource-consumer", "/consume-cpu/consume-cpu": "consume-cpu"},
			config:   ocispec.ImageConfig{Entrypoint: []string{"/consumer"}},
		},
		{
			name: "nfs", ids: ids(imageutils.VolumeNFSServer), on: "base", programs: nfsPrograms,
			files:    map[string]string{"/tmp/index.html": "volume/nfs/index.html"},
			scripts:  map[string]string{"/usr/local/bin/run_nfs.sh": "volume/nfs/run_nfs.sh"},
			settings: []string{"/etc/netconfig", "/etc/services", "/etc/protocols", "/etc/rpc"}, extra: addNFS,
			config: ocispec.ImageConfig{
				Entrypoint: []string{"/usr/local/bin/run_nfs.sh"}, Cmd: []string{"/exports", "/"}, Volumes: map[string]struct{}{"/exports": {}},
			},
		},
		{
			name: "iscsi", ids: ids(imageutils.VolumeISCSIServer), on: "base",
			scripts: map[string]string{"/usr/local/bin/run_iscsi_target.sh": "volume/iscsi/run_iscsi_target.sh"}, extra: addISCSI,
			config: ocispec.ImageConfig{Entrypoint: []string{"/usr/local/bin/run_iscsi_target.sh"}},
		},
	}
}

// addNFS adds the directories and users that the programs of an NFS server expect.
func addNFS(_ Sources, tree *oci.Tree) error {
	for _, dir := range []string{"/exports", "/var/lib/nfs/sm", "/var/lib/nfs/sm.bak", "/var/lib/nfs/v4recovery", "/run/rpcbind", "/run/sendsigs.omit.d"} {
		tree.Dir(dir, 0o755)
	}
	for _, file := range []string{"/etc/exports", "/var/lib/nfs/etab", "/var/lib/nfs/rmtab", "/var/lib/nfs/state"} {
		tree.File(file, 0o644, nil)
	}
	tree.File("/etc/passwd", 0o644, []byte(passwd+"_rpc:x:100:65534::/run/rpcbind:/bin/false\nstatd:x:101:65534::/var/lib/nfs:/bin/false\n"))
	tree.Symlink("/usr/bin/env", "/bin/env") // the script's first line names it
	return nil
}

// addUsers adds what agnhost's image has beyond programs.
func addUsers(_ Sources, tree *oci.Tree) error {
	tree.Symlink("/agnhost-2", "agnhost")
	tree.Dir("/uploads", 0o755)
	tree.Dir("/home/user-defined-in-image", 0o755)
	tree.File("/etc/passwd", 0o644, []byte(imagePasswd))
	tree.File("/etc/group", 0o644, []byte(imageGroup))
	tree.File("/etc/wgetrc", 0o644, []byte("tries = 1\n")) // as busybox's
	return nil
}

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

func addNginx(_ Sources, tree *oci.Tree) error {
	tree.File("/etc/nginx/nginx.conf", 0o644, []byte(nginxConfig))
	page := "<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head>" +
		"<body><h1>Welcome to nginx!</h1></body></html>\n"
	tree.File("/usr/share/nginx/html/index.html", 0o644, []byte(page))
	for _, dir := range []string{"/var/lib/nginx", "/var/log/nginx", "/usr/share/nginx/modules"} {
		tree.Dir(dir, 0o755)
	}
	return nil
}
