package cm

import (
	"fmt"
	"math/big"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/qos"
)

// SwapBehavior says which containers may use swap.
type SwapBehavior string

const (
	// NoSwap lets none use any. It is the default.
	NoSwap SwapBehavior = "NoSwap"
	// LimitedSwap gives the containers of Burstable Pods as large a share of the node's swap as the share of its memory
	// that they ask for. It needs control groups of version 2; elsewhere none is given.
	LimitedSwap SwapBehavior = "LimitedSwap"
)

// SwapMax is the key, among LinuxContainerResources.Unified, of how much swap a container may use.
const SwapMax = "memory.swap.max"

// Validate says whether the behavior is one of those known; empty is NoSwap.
func (b SwapBehavior) Validate() error {
	switch b {
	case "", NoSwap, LimitedSwap:
		return nil
	default:
		return fmt.Errorf("memorySwap.swapBehavior %q: want %s or %s", string(b), NoSwap, LimitedSwap)
	}
}

// swapLimit is how much swap the container may use, in bytes: KEP-2400 gives it to containers of Burstable Pods that ask for
// memory, but not to critical ones, nor where the limit of memory is the request.
func swapLimit(pod *corev1.Pod, c *corev1.Container, opts ResourceOptions) int64 {
	if opts.SwapBehavior != LimitedSwap || !opts.Unified || opts.MemoryCapacity <= 0 ||
		qos.Class(pod) != corev1.PodQOSBurstable || qos.IsCritical(pod) {
		return 0
	}
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if request.Sign() <= 0 || request.Cmp(*limit) == 0 {
		return 0
	}
	// Numbers of bytes multiplied do not fit into 64 bits.
	share := new(big.Int).Mul(big.NewInt(request.Value()), big.NewInt(opts.SwapCapacity))
	return share.Div(share, big.NewInt(opts.MemoryCapacity)).Int64()
}

// limitSwap lets the container use so many bytes of swap. Version 1 counts memory and swap together, and no container gets
// any there. And it sees to it that a container out of memory ends as a whole.
func limitSwap(r *runtimeapi.LinuxContainerResources, opts ResourceOptions, swap int64) {
	if !opts.Unified {
		if opts.Swap {
			r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
		}
		return
	}
	unified := map[string]string{}
	if !opts.SingleProcessOOMKill {
		unified["memory.oom.group"] = "1"
	}
	if opts.Swap {
		unified[SwapMax] = strconv.FormatInt(swap, 10)
	}
	if len(unified) > 0 {
		r.Unified = unified
	}
}
