#!/bin/sh
# Stands for targetcli in the image of the iSCSI target: what upstream's run_iscsi_target.sh calls it for, written to the kernel's configfs.
set -eu
root=/sys/kernel/config/target
if [ ! -d $root/iscsi ]; then
	modprobe -a configfs target_core_mod target_core_file iscsi_target_mod
	[ -d $root ] || mount -t configfs configfs /sys/kernel/config
	mkdir -p $root/iscsi
fi
path=$1 action=$2
shift 2
store() { echo "$root"/core/fileio_*/"$1"; }
case $path in
/iscsi)
	tpg=$root/iscsi/$1/tpgt_1
	case $action in
	create)
		mkdir -p "$tpg/np/0.0.0.0:3260"
		echo 1 > "$tpg/enable" ;;
	delete)
		echo 0 > "$tpg/enable"
		rmdir "$tpg"/np/* "$tpg" "$root/iscsi/$1" ;;
	esac ;;
/iscsi/*/tpg1)
	iqn=${path#/iscsi/}
	for setting; do
		case $setting in *=*) echo "${setting#*=}" > "$root/iscsi/${iqn%/tpg1}/tpgt_1/attrib/${setting%%=*}" ;; esac
	done ;;
/iscsi/*/tpg1/luns | /iscsi/*/tpg1/luns/)
	iqn=${path#/iscsi/}
	luns=$root/iscsi/${iqn%%/tpg1*}/tpgt_1/lun
	case $action in
	create)
		mkdir -p "$luns/lun_0"
		ln -s "$(store "${1##*/}")" "$luns/lun_0/store" ;;
	delete)
		rm "$luns/lun_$1/store"
		rmdir "$luns/lun_$1" ;;
	esac ;;
/backstores/fileio)
	case $action in
	create)
		n=0
		until mkdir "$root/core/fileio_$n" 2>/dev/null; do [ $((n += 1)) -lt 1000 ]; done
		store=$root/core/fileio_$n/$1
		mkdir "$store"
		echo "fd_dev_name=$2,fd_dev_size=$(stat -c %s "$2")" > "$store/control"
		echo "$1" > "$store/wwn/vpd_unit_serial"
		echo 1 > "$store/enable" ;;
	delete)
		store=$(store "$1")
		rmdir "$store" "$(dirname "$store")" ;;
	esac ;;
*)
	echo "targetcli: $path $action is not supported here" >&2
	exit 1 ;;
esac
