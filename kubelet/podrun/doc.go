// Package podrun runs one Pod in the foreground on a standalone kubelet: it copies the logs of its containers and returns
// its exit code.
package podrun
