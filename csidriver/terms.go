package csidriver

import (
	"math"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// ParameterOvercommit is the parameter of a StorageClass that lets its volumes have more bytes than the disk: a volume
	// counts as its size divided by this decimal number, which is at least 1, or not at all if it is OvercommitUnlimited.
	// The default is 1.
	ParameterOvercommit = "overcommit"
	// ParameterPreallocate is the parameter of a StorageClass that allocates all blocks of a volume when it is created or
	// expanded: "true" or "false", the default.
	ParameterPreallocate = "preallocate"
	// OvercommitUnlimited is the value of ParameterOvercommit for volumes that do not count.
	OvercommitUnlimited = "unlimited"

	// oldFSTypeParameter, in upper or lower case, is the deprecated parameter that names the file system. Provisioners put it into
	// the capability of the volume, and pass it on.
	oldFSTypeParameter = "fstype"
)

// unlimited is the value of terms.Overcommit for volumes that do not count.
const unlimited = -1

// terms are what a StorageClass has to do with the space of its volumes.
type terms struct {
	// Overcommit is ParameterOvercommit; 0 means 1.
	Overcommit float64 `json:"overcommit,omitempty"`
	// Preallocate is ParameterPreallocate.
	Preallocate bool `json:"preallocate,omitempty"`
}

// parseParameters returns the terms that the parameters of a StorageClass have. It rejects parameters that it does not know.
func (d *Driver) parseParameters(parameters map[string]string) (terms, error) {
	var t terms
	for key, value := range parameters {
		if strings.HasPrefix(key, reservedParameters) || strings.EqualFold(key, oldFSTypeParameter) {
			continue
		}
		var err error
		switch key {
		case ParameterOvercommit:
			t.Overcommit, err = parseOvercommit(value)
		case ParameterPreallocate:
			if value != "true" && value != "false" {
				err = status.Errorf(codes.InvalidArgument, "parameters: %s %q is neither \"true\" nor \"false\"", key, value)
			}
			t.Preallocate = value == "true"
		default:
			err = status.Errorf(codes.InvalidArgument, "parameters: %q is not supported, only %q and %q",
				key, ParameterOvercommit, ParameterPreallocate)
		}
		if err != nil {
			return terms{}, err
		}
	}
	if t.Preallocate && t.Overcommit != 0 && t.Overcommit != 1 {
		return terms{}, status.Errorf(codes.InvalidArgument,
			"parameters: %s %q excludes %s: blocks that are allocated are not overcommitted", ParameterPreallocate, "true", ParameterOvercommit)
	}
	if _, set := parameters[ParameterOvercommit]; !set && d.config.Thin && !t.Preallocate {
		t.Overcommit = unlimited
	}
	return t, nil
}

func parseOvercommit(value string) (float64, error) {
	if value == OvercommitUnlimited {
		return unlimited, nil
	}
	factor, err := strconv.ParseFloat(value, 64)
	if err != nil || !(factor >= 1) || math.IsInf(factor, 0) {
		return 0, status.Errorf(codes.InvalidArgument,
			"parameters: %s %q is neither a decimal number of at least 1 nor %q", ParameterOvercommit, value, OvercommitUnlimited)
	}
	return factor, nil
}

// counted returns how many bytes of disk space a volume of that size may use.
func (t terms) counted(size int64) int64 {
	switch {
	case t.Overcommit == unlimited:
		return 0
	case t.Overcommit <= 1:
		return size
	}
	return int64(math.Ceil(float64(size) / t.Overcommit))
}

// largest returns the largest volume that counts as at most that many bytes.
func (t terms) largest(bytes int64) int64 {
	if t.Overcommit == unlimited {
		return maxImage
	}
	return int64(min(float64(bytes)*max(t.Overcommit, 1), maxImage))
}
