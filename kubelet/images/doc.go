// Package images makes a container's image be present before the container is created: by pull policy, with the
// backoff and the reasons that users know from a Pod's status.
package images
