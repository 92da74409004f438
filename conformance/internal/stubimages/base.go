package stubimages

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/conformance/internal/elfdeps"
	"github.com/berth-dev/berth/conformance/internal/oci"
)

// Sources are the directories that the images are made from.
type Sources struct {
	// Debian holds the unpacked packages of deps.sh.
	Debian string
	// Programs holds the Go programs of build.sh.
	Programs string
	// Upstream is the directory test/images of upstream's module, for data files.
	Upstream string
	// Pause is the program of the pause image.
	Pause string
}

// Users as upstream's images have them. Only agnhost has the one that a spec about groups of images asks for: specs about
// a volume's group read numbers in the others.
const (
	passwd      = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n"
	group       = "root:x:0:\nnogroup:x:65534:\n"
	imagePasswd = passwd + "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"
	imageGroup  = group + "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
	// A spec about image volumes reads this system's name.
	release = "NAME=\"Alpine Linux\"\nID=alpine\nPRETTY_NAME=\"Alpine Linux (a stub made of Debian's busybox)\"\n"
)

// base is the layer below all images with a shell: busybox with every applet but dd, bash, the shell that picks one, and nmeter.
func (s Sources) base() (*oci.Tree, error) {
	tree := &oci.Tree{}
	for name, mode := range map[string]int64{
		"/tmp": 0o1777, "/root": 0o700, "/home": 0o755, "/var/tmp": 0o1777, "/usr/bin": 0o755,
		"/usr/sbin": 0o755, "/usr/local/bin": 0o755, "/sbin": 0o755, "/mnt": 0o755, "/run": 0o755, "/var/log": 0o755,
		"/proc": 0o555, "/sys": 0o555, "/dev": 0o755,
	} {
		tree.Dir(name, mode)
	}
	tree.File("/etc/passwd", 0o644, []byte(passwd))
	tree.File("/etc/group", 0o644, []byte(group))
	tree.File("/etc/os-release", 0o644, []byte(release))
	// busybox's dd does not know the flag nocache, which the specs about block volumes write with.
	programs := map[string]string{"/bin/busybox": "/bin/busybox", "/bin/bash": "/bin/bash-static", "/bin/dd": "/bin/dd"}
	if err := s.addPrograms(tree, programs); err != nil {
		return nil, err
	}
	busybox := filepath.Join(s.Debian, "bin", "busybox")
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list the applets of %q: %w", busybox, err)
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" && applet != "sh" && applet != "dd" {
			tree.Symlink("/bin/"+applet, "busybox")
		}
	}
	for _, program := range []string{"sh", "nmeter"} {
		if err := tree.Copy("/bin/"+program, 0o755, filepath.Join(s.Programs, program)); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// addPrograms adds Debian's programs (name in the image to name in the packages) with the libraries they need.
func (s Sources) addPrograms(tree *oci.Tree, programs map[string]string) error {
	root := elfdeps.Root(s.Debian)
	for name, source := range programs {
		path, err := root.Path(source)
		if err != nil {
			return err
		}
		if err := tree.Copy(name, 0o755, path); err != nil {
			return err
		}
		needs, err := root.Needs(source)
		if err != nil {
			return err
		}
		for _, library := range needs {
			if tree.Has(library) {
				continue
			}
			path, err := root.Path(library)
			if err != nil {
				return err
			}
			if err := tree.Copy(library, 0o755, path); err != nil {
				return err
			}
		}
	}
	return nil
}
