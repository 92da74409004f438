// Package provision sets Berth's dynamic provisioning beside sig-storage-lib-external-provisioner, the library of
// nearly all provisioners there are, on a real control plane.
package provision
