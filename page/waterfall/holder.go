package waterfall

import (
	"strings"

	"github.com/berth-dev/berth/timeline"
)

// The holders of stages, by which rows are coloured: who a Pod waits for during a stage. Most stages are recorded by the
// kubelet, which only calls another program.
const (
	holderAPI        = "API server"
	holderScheduler  = "scheduler"
	holderKubelet    = "kubelet"
	holderRuntime    = "container runtime"
	holderContainer  = "container"
	holderStorage    = "storage"
	holderController = "controller"
)

// Holder returns who works during the stage of an owner: its colour follows from that.
func Holder(stage, owner string) string {
	switch stage {
	case timeline.StageAccepted, timeline.StageObserved, timeline.StageStatus, timeline.StageRemoved:
		return holderAPI
	case timeline.StageScheduled:
		return holderScheduler
	case timeline.StageSandbox, timeline.StageImage, timeline.StageCreate, timeline.StageStart, timeline.StageStop:
		return holderRuntime
	case timeline.StageInit, timeline.StagePostStart, timeline.StageProbe:
		return holderContainer
	case timeline.StageDriver, timeline.StageProvisioning, timeline.StageReclaim, timeline.StageExpanding, timeline.StageModifying, timeline.StageAttach:
		return holderStorage
	case timeline.StageSaving, timeline.StageBound, timeline.StageReconcile:
		return holderController
	}
	switch owner { // its class counts, not which of its components it is
	case "api":
		return holderAPI
	case "provision", "attachdetach", "resizer":
		return holderStorage
	}
	return owner
}

// classes are the style classes of the colours, by holder.
var classes = map[string]string{
	holderAPI: "api", holderScheduler: "sched", holderKubelet: "kubelet", holderRuntime: "runtime",
	holderContainer: "container", holderStorage: "storage",
	holderController: "controller", "kube-controller-manager": "controller", "replicaset": "controller",
}

// Class returns the style class of a holder's colour.
func Class(holder string) string {
	first, _, _ := strings.Cut(holder, ",")
	if class, ok := classes[first]; ok {
		return class
	}
	return "other"
}
