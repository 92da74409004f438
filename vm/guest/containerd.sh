#!/bin/sh
# Installs containerd in a machine that is to become a node: CRI at its usual socket, a bridge for the Pods' network, and
# the kernel's settings. With systemd it is a unit and uses the systemd cgroup driver, and it starts with the machine.
# Without systemd it is a process that ends with the caller's process namespace. Run as root.
#
#   containerd.sh PROGRAMS SUBNET SANDBOX_IMAGE
#
# PROGRAMS has containerd, the shims, runc, and the plugins in cni/. SUBNET is the Pods' network on this machine. The variable
# SHIM names the shim of all Pods; without it that is containerd's.
set -eu
programs=$1 subnet=$2 sandbox=$3 shim=${SHIM:-containerd-shim-runc-v2}
systemd=false bin=$programs cni=$programs/cni
if [ -d /run/systemd/system ]; then
	systemd=true bin=/usr/local/bin cni=/opt/cni/bin
	mkdir -p $cni
	cp "$programs/containerd" "$programs/containerd-shim-runc-v2" "$programs/containerd-shim-berth-v1" "$programs/runc" $bin/
	cp "$programs"/cni/* $cni/
fi

for module in overlay br_netfilter; do modprobe $module 2>/dev/null || true; done
[ ! -d /etc/modules-load.d ] || printf 'overlay\nbr_netfilter\n' > /etc/modules-load.d/node.conf
[ ! -d /etc/sysctl.d ] || printf 'net.ipv4.ip_forward = 1\n' > /etc/sysctl.d/90-node.conf
echo 1 > /proc/sys/net/ipv4/ip_forward

# Without CAP_SYS_RESOURCE (24) no process may lower its OOM score.
caps=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
restrict=true
[ $((0x$caps >> 24 & 1)) = 0 ] || restrict=false

runtime() {
	cat <<TOML
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.$1]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = "$bin/$shim"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.$1.options]
        BinaryName = "$bin/runc"
        SystemdCgroup = $systemd
TOML
}
mkdir -p /etc/containerd/certs.d /etc/cni/net.d
{
	cat <<TOML
version = 4
[timeouts]
  # A shim that starts slowly is not dead: an emulated machine is slow.
  "io.containerd.timeout.shim.load" = "2m"
  "io.containerd.timeout.task.state" = "2m"
[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "$sandbox"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.transfer.v1.local"]
  config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = $restrict
  device_ownership_from_security_context = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$cni"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
TOML
	runtime runc
	# The handler that upstream's specs about RuntimeClass expect.
	runtime test-handler
} > /etc/containerd/config.toml
cat > /etc/cni/net.d/10-bridge.conflist <<JSON
{
  "cniVersion": "1.0.0",
  "name": "bridge",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "$subnet"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON

if ! $systemd; then
	mkdir -p /run/containerd
	setsid "$bin/containerd" >/var/log/containerd.log 2>&1 & # the caller may interrupt its own process group
	echo $! > /run/containerd/containerd.pid
else
	cat > /etc/systemd/system/containerd.service <<UNIT
[Unit]
Description=containerd
After=network.target local-fs.target
[Service]
Type=notify
ExecStart=$bin/containerd
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Delegate=yes
KillMode=process
Restart=always
LimitNOFILE=infinity
TasksMax=infinity
OOMScoreAdjust=-999
TimeoutStartSec=10min
[Install]
WantedBy=multi-user.target
UNIT
	systemctl daemon-reload
	systemctl -q enable --now containerd
fi
tries=0
until [ -S /run/containerd/containerd.sock ]; do
	tries=$((tries + 1))
	[ $tries -lt 600 ] || { echo "containerd.sh: containerd has no socket after 5 minutes" >&2; exit 1; }
	sleep 0.5
done
