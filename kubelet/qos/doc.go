// Package qos computes a Pod's quality-of-service class and what follows from it for the kernel's OOM killer.
package qos
