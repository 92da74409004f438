package images

import (
	"cmp"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

const (
	// hubHost is the host of Docker Hub's images, and hubKey the one under which Docker keeps the login for them.
	hubHost, hubKey = "docker.io", "index.docker.io"
)

// Logins are the logins of Docker configurations and credential providers. The zero value has none.
type Logins struct{ all []keyed }

// keyed is a login with its key: a host and the beginning of a path.
type keyed struct {
	key        string
	credential Credential
}

// Add adds a login. Its key in the Docker configuration is a host, optionally with a port, with a scheme, with "*" in parts of the
// host's name, and with the beginning of a repository's path; the API's versions before the path are no part of it. A key that is no
// URL is left out.
func (l *Logins) Add(key string, credential Credential) {
	if !strings.HasPrefix(key, "https://") && !strings.HasPrefix(key, "http://") {
		key = "https://" + key
	}
	u, err := url.Parse(key)
	if err != nil {
		return
	}
	path := u.Path
	if strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/v2/") {
		path = path[len("/v1"):]
	}
	if path == "/" {
		path = ""
	}
	l.all = append(l.all, keyed{u.Host + path, credential})
}

// For returns the credentials of the logins that match the image, in the reverse order of their keys, so that a longer path comes before
// a shorter one and a host's name before a pattern, and those of one key in the order in which they were added. Docker's login for its hub counts for images
// of the hub that no other login matches.
func (l *Logins) For(image reference.Named) []Credential {
	var found, hub []keyed
	for _, one := range l.all {
		switch {
		case Matches(one.key, image):
			found = append(found, one)
		case one.key == hubKey && reference.Domain(image) == hubHost:
			hub = append(hub, one)
		}
	}
	if len(found) == 0 {
		found = hub
	}
	slices.SortStableFunc(found, func(a, b keyed) int { return cmp.Compare(b.key, a.key) })
	credentials := make([]Credential, 0, len(found))
	for _, one := range found {
		credentials = append(credentials, one.credential)
	}
	return credentials
}

// Matches reports whether a pattern matches the image: its host's parts, in which "*" stands for any text, and its port are the image's,
// and its path is the beginning of the image's, not only at a slash.
func Matches(pattern string, image reference.Named) bool {
	u, err := url.Parse("https://" + pattern)
	if err != nil || !strings.HasPrefix("/"+reference.Path(image), u.Path) {
		return false
	}
	parts, port := splitHost(u.Host)
	wanted, wantedPort := splitHost(reference.Domain(image))
	if port != wantedPort || len(parts) != len(wanted) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(parts[i], wanted[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

// splitHost returns the parts of a host's name, and the port if it has one.
func splitHost(host string) (parts []string, port string) {
	if name, number, err := net.SplitHostPort(host); err == nil {
		host, port = name, number
	}
	return strings.Split(host, "."), port
}
