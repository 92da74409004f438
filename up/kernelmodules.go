package up

import (
	"context"
	"strings"

	"github.com/berth-dev/berth/internal/kernelmodule"
)

// neededModule is a module of the kernel that a component needs.
type neededModule struct {
	kernelmodule.Module
	component string // empty: every cluster needs it
}

func neededModules() []neededModule {
	return []neededModule{
		{Module: kernelmodule.Module{Name: "overlay", Filesystem: "overlay", Without: "images are copied for each container"}},
		{component: "csi-driver", Module: kernelmodule.Module{
			Name: "loop", Feature: "/dev/loop-control", Without: "there are no volumes of class berth-loop"}},
		{component: "csi-driver", Module: kernelmodule.Module{
			Name: "dm_mod", Feature: "/sys/class/misc/device-mapper",
			Without: "a Pod can change size and offset of its own raw block devices of class berth-loop until it ends"}},
		{component: proxyName, Module: kernelmodule.Module{
			Name: "br_netfilter", Feature: bridgeNetfilter, Without: "Pods cannot reach Services whose Pods are on the same node"}},
		{component: proxyName, Module: kernelmodule.Module{Name: "nf_tables", Without: "there are no Services"}},
	}
}

// KernelModules returns the modules of the kernel that a cluster with all its components needs.
func KernelModules() []kernelmodule.Module {
	var modules []kernelmodule.Module
	for _, needed := range neededModules() {
		modules = append(modules, needed.Module)
	}
	return modules
}

// loadModules loads the modules that are missing and says which. A cluster works without those that cannot be loaded, with
// the restriction that a warning names.
func (c *Cluster) loadModules(ctx context.Context, modules []neededModule) {
	var loaded []string
	for _, module := range modules {
		if module.component != "" && !c.runs(module.component) || !module.IsMissing() {
			continue
		}
		if err := module.Load(ctx); err != nil {
			c.progress.Printf("warning: without the kernel module %s %s: %v", module.Name, module.Without, err)
			continue
		}
		loaded = append(loaded, module.Name)
	}
	if len(loaded) > 0 {
		c.progress.Printf("loaded kernel modules: %s", strings.Join(loaded, ", "))
	}
}
