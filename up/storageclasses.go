package up

import (
	"os"
	"os/exec"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision/local"
)

// storageClasses returns the cluster's classes. The default is one that enforces the size of a claim: directories where the file
// system has project quotas, otherwise disks. A machine that has neither gets directories.
func (c *Cluster) storageClasses() []runtime.Object {
	directories, disks := local.StorageClass(), csidriver.StorageClass()
	unenforced := local.Enforces(c.VolumesDir())
	missing := c.missingForDisks()
	disksAreDefault := unenforced != nil && missing == ""
	if unenforced != nil && missing != "" {
		c.progress.Printf("warning: the default StorageClass %s does not enforce the sizes of claims: %v; and %s has no disks: %s",
			local.ClassName, unenforced, csidriver.ClassName, missing)
	}
	directories.Annotations = map[string]string{local.AnnDefaultClass: strconv.FormatBool(!disksAreDefault)}
	disks.Annotations = map[string]string{local.AnnDefaultClass: strconv.FormatBool(disksAreDefault)}
	return []runtime.Object{directories, disks}
}

// missingForDisks returns what the machine lacks for volumes of class berth-loop; "" if nothing.
func (c *Cluster) missingForDisks() string {
	for _, component := range []string{"csi-driver", "csi-provisioner", "csi-attacher"} {
		if !c.runs(component) {
			return "the component " + component + " does not run"
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "the kernel has no loop devices"
	}
	if _, err := exec.LookPath("mkfs." + csidriver.DefaultFSType); err != nil {
		return "mkfs." + csidriver.DefaultFSType + " is not installed"
	}
	return ""
}
