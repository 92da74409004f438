// Package features describes what the runtime supports, as containerd reads it: runc's library of this program, with seccomp and
// without checkpoints.
package features

import (
	"fmt"
	"io"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runc/libcontainer/capabilities"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Info returns the description of the runtime, encoded for containerd, with the options that containerd sends.
func Info(name, version string, stdin io.Reader) ([]byte, error) {
	data, err := io.ReadAll(stdin)
	if err != nil {
		return nil, fmt.Errorf("read the runtime's options: %w", err)
	}
	info := &types.RuntimeInfo{Name: name, Version: &types.RuntimeVersion{Version: version}}
	if len(data) > 0 {
		info.Options = &anypb.Any{}
		if err := proto.Unmarshal(data, info.Options); err != nil {
			return nil, fmt.Errorf("read the runtime's options: %w", err)
		}
	}
	typeurl.Register(&features.Features{}, "types.containerd.io", "opencontainers", "runtime-spec", "1", "features", "Features")
	if info.Features, err = typeurl.MarshalAnyToProto(describe()); err != nil {
		return nil, fmt.Errorf("describe the runtime: %w", err)
	}
	return proto.Marshal(info)
}

func describe() *features.Features {
	yes := new(bool)
	*yes = true
	described := &features.Features{
		OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version,
		Annotations:   map[string]string{"org.opencontainers.runc.checkpoint.enabled": "true"},
		Hooks:         configs.KnownHookNames(),
		MountOptions:  specconv.KnownMountOptions(),
		Linux: &features.Linux{
			Namespaces:      specconv.KnownNamespaces(),
			Capabilities:    capabilities.KnownCapabilities(),
			Cgroup:          &features.Cgroup{V1: yes, V2: yes, Systemd: yes, SystemdUser: yes, Rdma: yes},
			Apparmor:        &features.Apparmor{Enabled: yes},
			Selinux:         &features.Selinux{Enabled: yes},
			IntelRdt:        &features.IntelRdt{Enabled: yes, Schemata: yes, Monitoring: yes},
			MemoryPolicy:    &features.MemoryPolicy{Modes: specconv.KnownMemoryPolicyModes(), Flags: specconv.KnownMemoryPolicyFlags()},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: yes}},
			NetDevices:      &features.NetDevices{Enabled: yes},
		},
		PotentiallyUnsafeConfigAnnotations: []string{"bundle", "org.systemd.property.", "org.criu.config"},
	}
	if seccomp.Enabled {
		described.Linux.Seccomp = &features.Seccomp{
			Enabled: yes, Actions: seccomp.KnownActions(), Operators: seccomp.KnownOperators(), Archs: seccomp.KnownArchs(),
			KnownFlags: seccomp.KnownFlags(), SupportedFlags: seccomp.SupportedFlags(),
		}
	}
	return described
}
