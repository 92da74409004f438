#!/bin/sh
# Turns a fresh Debian system into the image of the virtual machine. $1 is its root directory, $2 the public key that
# may log in.
set -eu
root=$1

install -d -m 0700 "$root/root/.ssh"
printf '%s\n' "$2" > "$root/root/.ssh/authorized_keys"
printf 'PermitRootLogin prohibit-password\nUseDNS no\nMaxSessions 100\n' > "$root/etc/ssh/sshd_config.d/vm.conf"
printf '/dev/vda / ext4 defaults 0 1\n' > "$root/etc/fstab"
printf 'vm\n' > "$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
: > "$root/etc/resolv.conf"
: > "$root/etc/machine-id" # each machine gets its own from the kernel's command line

# The network of the host, by which the tests log in. Interfaces are matched by the MAC addresses that qemu gets.
cat > "$root/etc/systemd/network/10-host.network" <<'UNIT'
[Match]
MACAddress=52:54:00:be:00:01
[Network]
DHCP=ipv4
[DHCPv4]
UseDNS=no
UNIT

# Says that commands can be run.
cat > "$root/etc/systemd/system/vm-ready.service" <<'UNIT'
[Unit]
Description=Report to the host that commands can be run
After=ssh.service network-online.target
Wants=network-online.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo ready > /dev/virtio-ports/vm.ready'
[Install]
WantedBy=multi-user.target
UNIT

# The address in the network of several machines is on the kernel's command line (systemd-network-generator(8)).
for unit in systemd-networkd systemd-network-generator vm-ready; do chroot "$root" systemctl -q enable "$unit.service"; done
chroot "$root" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer \
    e2scrub_all.timer e2scrub_reap.service man-db.timer getty@tty1.service nfs-client.target rpcbind.service rpcbind.socket \
    nfs-server.service nfsdcld.service open-iscsi.service
# Started by the tests that need it: it takes disks for itself.
chroot "$root" systemctl -q disable multipathd.service multipathd.socket
chroot "$root" systemctl -q set-default multi-user.target

# A small initial RAM disk boots faster.
printf 'MODULES=list\nCOMPRESS=lz4\n' > "$root/etc/initramfs-tools/conf.d/vm.conf"
printf 'virtio_pci\nvirtio_blk\next4\n' >> "$root/etc/initramfs-tools/modules"
chroot "$root" update-initramfs -u -k all
rm -rf "$root/var/cache/apt" "$root/var/lib/apt/lists" "$root"/usr/share/doc/* "$root"/usr/share/man/*
mkdir -p "$root/var/cache/apt/archives/partial"
