// Package provision compares Berth's dynamic provisioning with sig-storage-lib-external-provisioner, the library of nearly
// all provisioners, on a real control plane.
package provision
