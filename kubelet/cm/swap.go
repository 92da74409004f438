package cm

import (
	"fmt"
	"math/big"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/qos"
)

// SwapBehavior decides which containers may use swap.
type SwapBehavior string

const (
	// NoSwap lets no container use swap. It is the default.
	NoSwap SwapBehavior = "NoSwap"
	// LimitedSwap gives the containers of Burstable Pods the same share of the node's swap as they request of its
	// memory. It needs cgroup v2; with v1 no container gets swap.
	LimitedSwap SwapBehavior = "LimitedSwap"
)

// SwapMax is the key, among LinuxContainerResources.Unified, of how much swap a container may use.
const SwapMax = "memory.swap.max"

// Validate rejects an unknown behavior; empty is NoSwap.
func (b SwapBehavior) Validate() error {
	switch b {
	case "", NoSwap, LimitedSwap:
		return nil
	default:
		return fmt.Errorf("memorySwap.swapBehavior %q: want %s or %s", string(b), NoSwap, LimitedSwap)
	}
}

// swapLimit returns how much swap the container may use, in bytes: KEP-2400 gives it to containers of Burstable Pods
// that request memory, but not to critical ones, nor where the limit of memory equals the request.
func swapLimit(pod *corev1.Pod, c *corev1.Container, opts ResourceOptions) int64 {
	if opts.SwapBehavior != LimitedSwap || !opts.Unified || opts.MemoryCapacity <= 0 ||
		qos.Class(pod) != corev1.PodQOSBurstable || qos.IsCritical(pod) {
		return 0
	}
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if request.Sign() <= 0 || request.Cmp(*limit) == 0 {
		return 0
	}
	// The product of two amounts of bytes does not fit into 64 bits.
	share := new(big.Int).Mul(big.NewInt(request.Value()), big.NewInt(opts.SwapCapacity))
	return share.Div(share, big.NewInt(opts.MemoryCapacity)).Int64()
}

// limitSwap limits the container's swap. Cgroup v1 counts memory and swap together, and no container gets any there. It
// also makes the kernel kill a container out of memory as a whole.
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
