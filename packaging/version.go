package packaging

import (
	"fmt"
	"regexp"
	"time"
)

// Version is a version as package managers compare it: Base, then Before for what precedes the release, After for what follows it.
type Version struct{ Base, Before, After string }

var (
	releaseVersion = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-((?:alpha|beta|rc)[0-9.]*))?(-dirty)?$`)
	laterVersion   = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-((?:alpha|beta|rc)[0-9.]*))?-(\d+)-(g[0-9a-f]+)(-dirty)?$`)
	devVersion     = regexp.MustCompile(`^(\d+\.\d+\.\d+)-dev(?:\.([0-9a-f]+))?(\.dirty)?$`)
)

// ParseVersion returns the version of packages for what hack/version.sh prints. made is the time of the source, which orders builds
// that no release precedes.
func ParseVersion(text string, made time.Time) (Version, error) {
	if m := releaseVersion.FindStringSubmatch(text); m != nil {
		v := Version{Base: m[1], Before: m[2]}
		if m[3] != "" {
			v.After = "0.dirty" // before the version of the next commit
		}
		return v, nil
	}
	if m := laterVersion.FindStringSubmatch(text); m != nil {
		v := Version{Base: m[1], Before: m[2], After: m[3] + "." + m[4]}
		if m[5] != "" {
			v.After += ".dirty"
		}
		return v, nil
	}
	if m := devVersion.FindStringSubmatch(text); m != nil {
		v := Version{Base: m[1], Before: "dev" + made.UTC().Format("20060102150405")}
		if m[2] != "" {
			v.Before += "." + m[2]
		}
		if m[3] != "" {
			v.Before += ".dirty"
		}
		return v, nil
	}
	return Version{}, fmt.Errorf("version %q: want 1.2.3, 1.2.3-rc1, 1.2.3-4-gabc123 or 1.2.3-dev.abc123", text)
}

// String returns the version as dpkg and rpm write it.
func (v Version) String() string {
	text := v.Base
	if v.Before != "" {
		text += "~" + v.Before
	}
	if v.After != "" {
		text += "+" + v.After
	}
	return text
}
