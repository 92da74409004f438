// Package qos computes a Pod's quality-of-service class, and the OOM score adjustment of its containers.
package qos
