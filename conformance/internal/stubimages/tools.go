package stubimages

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// toolImages are the images of shells, tools and small programs.
func toolImages() []recipe {
	return []recipe{
		{name: "busybox", ids: ids(imageutils.BusyBox), on: "base", config: ocispec.ImageConfig{Cmd: []string{"sh"}}},
		{
			name: "nonewprivs", ids: ids(imageutils.Nonewprivs), on: "base", built: map[string]string{"/usr/local/bin/nnp": "nonewprivs"},
			config: ocispec.ImageConfig{Cmd: []string{"nnp"}},
		},
		{
			name: "nonroot", ids: ids(imageutils.NonRoot), on: "base", config: ocispec.ImageConfig{User: "1234", Cmd: []string{"sh"}},
		},
		{
			name: "ipc-utils", ids: ids(imageutils.IpcUtils), on: "base", config: ocispec.ImageConfig{Cmd: []string{"sh"}},
			programs: map[string]string{
				"/usr/bin/ipcs": "/usr/bin/ipcs", "/usr/bin/ipcmk": "/usr/bin/ipcmk", "/usr/bin/ipcrm": "/usr/bin/ipcrm",
			},
		},
		{
			name: "glibc-dns", ids: ids(imageutils.GlibcDnsTesting), on: "base", config: ocispec.ImageConfig{Cmd: []string{"bash"}},
			programs: map[string]string{
				"/usr/bin/dig": "/usr/bin/dig", "/usr/bin/nslookup": "/usr/bin/nslookup", "/usr/bin/getent": "/usr/bin/getent",
				"/bin/hostname": "/bin/hostname",
			},
		},
		{
			name: "iptables", ids: ids(imageutils.DistrolessIptables), on: "base", programs: map[string]string{"/usr/sbin/conntrack": "/usr/sbin/conntrack"},
		},
		{
			name: "perl", ids: ids(imageutils.Perl), on: "base", programs: map[string]string{"/usr/bin/perl": "/usr/bin/perl"},
			config: ocispec.ImageConfig{Cmd: []string{"perl"}},
		},
		{
			name: "pause", ids: ids(imageutils.Pause), built: map[string]string{"/pause": pauseProgram},
			config: ocispec.ImageConfig{User: "65535:65535", Entrypoint: []string{"/pause"}},
		},
		{
			name: "regression-issue-74839", ids: ids(imageutils.RegressionIssue74839), on: "base",
			built:  map[string]string{"/regression-issue-74839": "regression-issue-74839"},
			config: ocispec.ImageConfig{Entrypoint: []string{"/regression-issue-74839"}},
		},
	}
}
