// Package images ensures that a container's image is present before the container is created, according to the pull
// policy and with the backoff and reasons that users know from a Pod's status. It also removes unused images when the
// disk is full.
package images
