package up

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/kernelmodule"
	"github.com/berth-dev/berth/up/progress"
)

// TestMissingModulesAreLoadedOnce runs a modprobe that makes a module's file, and fails for one module.
func TestMissingModulesAreLoadedOnce(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = absent ] && { echo \"Module $1 not found\"; exit 1; }\necho \"$*\" >> " + dir + "/calls\n: > " + dir + "/$1\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "modprobe"), []byte(script), 0o755))
	t.Setenv("PATH", dir)
	var modules []neededModule
	for name, component := range map[string]string{"present": "", "one": "", "absent": "", "unused": dnsName} {
		modules = append(modules, neededModule{component: component, Module: kernelmodule.Module{
			Name: name, Feature: filepath.Join(dir, name), Without: "nothing is absent"}})
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "present"), nil, 0o600))
	var out bytes.Buffer
	c, err := New(Deps{Progress: progress.New(&out, nil, clock.RealClock{})},
		RunConfig{Layout: Layout{Config: Config{DataDir: dir}}, Without: []string{dnsName}})
	require.NoError(t, err)
	c.loadModules(t.Context(), modules)
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	require.NoError(t, err)
	require.Equal(t, "one\n", string(calls))
	require.Contains(t, out.String(), "loaded kernel modules: one\n")
	const warning = "warning: without the kernel module absent nothing is absent: modprobe absent: exit status 1: Module absent not found\n"
	require.Contains(t, out.String(), warning)

	out.Reset()
	c.loadModules(t.Context(), modules)
	require.Equal(t, warning, out.String(), "what is loaded is not mentioned again")
}

func TestModulesOfTheKernel(t *testing.T) {
	names := map[string]bool{}
	for _, module := range KernelModules() {
		names[module.Name] = true
		require.NotEmpty(t, module.Without)
	}
	require.Equal(t, map[string]bool{"overlay": true, "br_netfilter": true, "loop": true, "dm_mod": true, "nf_tables": true}, names)
}
