//go:build !cgo || !seccomp

package seccompcache

import (
	"errors"

	"github.com/opencontainers/runc/libcontainer/configs"
)

const (
	prefix  = "berth-seccomp:"
	magic   = "berthsc1"
	largest = 1 << 20
)

func compile(*configs.Seccomp) (calls, program []byte, err error) {
	return nil, nil, errors.New("compile a seccomp profile for later: this program is built without libseccomp")
}

// Used is how many filters of this process came from the file that it was given.
func Used() int { return 0 }
