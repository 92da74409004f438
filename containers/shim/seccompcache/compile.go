//go:build cgo && seccomp

package seccompcache

/*
#cgo CFLAGS: -Wall
#cgo LDFLAGS: -Wl,--wrap=seccomp_init -Wl,--wrap=seccomp_release -Wl,--wrap=seccomp_arch_add -Wl,--wrap=seccomp_attr_set
#cgo LDFLAGS: -Wl,--wrap=seccomp_rule_add_array -Wl,--wrap=seccomp_rule_add_exact_array -Wl,--wrap=seccomp_export_bpf
#cgo LDFLAGS: -Wl,--wrap=seccomp_reset -Wl,--wrap=seccomp_arch_remove -Wl,--wrap=seccomp_syscall_priority -Wl,--wrap=seccomp_load
#cgo LDFLAGS: -Wl,--wrap=seccomp_export_pfc -Wl,--wrap=seccomp_merge
#include <malloc.h>
#include <stdlib.h>
#include "known.h"
#include "wrap.h"

// libseccomp needs a megabyte for a profile, of which the C library would keep most.
static void return_memory(void) {
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
*/
import "C"

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
)

const (
	prefix  = C.PREFIX
	magic   = C.MAGIC
	largest = C.LARGEST
)

var compiling sync.Mutex // libseccomp is wrapped for the whole process

// compile lets runc's library compile a profile as a container's process would, and returns its calls of libseccomp and the filter that
// libseccomp made of them. Nothing is loaded: for runc's library libseccomp fails.
func compile(profile *configs.Seccomp) (calls, program []byte, err error) {
	compiling.Lock()
	defer compiling.Unlock()
	defer C.return_memory()
	C.berth_seccomp_capture_begin()
	_, err = seccomp.InitSeccomp(profile)
	var c, p unsafe.Pointer
	var callsSize, programSize C.size_t
	if C.berth_seccomp_capture_end(&c, &callsSize, &p, &programSize) == 0 {
		return nil, nil, errors.Join(errors.New("compile a seccomp profile for later: no result"), err)
	}
	defer C.free(c)
	defer C.free(p)
	return C.GoBytes(c, C.int(callsSize)), C.GoBytes(p, C.int(programSize)), nil
}

// Used is how many filters of this process came from the file that it was given.
func Used() int { return int(C.berth_seccomp_used()) }
