#!/bin/bash
# Reads what `toolkit doctor node` judges on a node, and prints it. Changes nothing, needs no root, always ends well.
#
#   bash probe.sh [--path FOLDER]... [--port PORT]... [--disk-speed FOLDER]
#
# Each reading is a section: a line `== NAME`, the command's own output, a line `-- exit STATUS`.
# 124 means that it took too long, 127 that the command is not on the node. Values of the environment are never read.
# `--disk-speed` is the one thing that writes: 1 GiB into a file of that folder, which is removed again.
# shellcheck disable=SC2016 # what is in single quotes is expanded by an inner shell
set -u
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:/opt/amazon/efa/bin:/opt/slurm/bin"

limit=10 # seconds a reading may take
most=200000 # bytes kept of a reading

# NAME COMMAND...
section() {
  local name=$1
  shift
  printf '== %s\n' "$name"
  if ! type -t "$1" >/dev/null; then
    printf '%s: command not found\n-- exit 127\n' "$1"
    return
  fi
  # awk ends the last line; PIPESTATUS keeps the command's own status.
  timeout --kill-after=2 "$limit" "$@" </dev/null 2>&1 | head -c "$most" | awk '1'
  printf -- '-- exit %s\n' "${PIPESTATUS[0]}"
}

# NAME SCRIPT [ARGUMENT...]: a section that needs a shell.
shell_section() {
  local name=$1 script=$2
  shift 2
  section "$name" bash -c "set -o pipefail; $script" bash "$@"
}

paths=() ports=() disk=''
while (($#)); do
  case $1 in
    --path) paths+=("${2:-}") ;;
    --port) ports+=("${2:-}") ;;
    --disk-speed) disk=${2:-} ;;
    *) printf 'probe.sh: unknown argument %s\n' "$1" >&2 ;;
  esac
  shift
  (($#)) && shift
done

section probe echo 1
section hostname hostname
section user id -u
section kernel uname -r
section clock date +%s
# NVIDIA's GPUs and NVSwitches and Amazon's adapters, as `ADDRESS VENDOR:DEVICE`; no lspci needed.
shell_section pci \
  'cd /sys/bus/pci/devices && for each in *; do
     read -r vendor <"$each/vendor" && read -r device <"$each/device" || continue
     case $vendor in 0x10de | 0x1d0f) printf "%s %s:%s\n" "$each" "${vendor#0x}" "${device#0x}" ;; esac
   done'

# Driver. The closed module says `license: NVIDIA`, the open one `Dual MIT/GPL`.
section gpus nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id --format=csv,noheader
section gpu_fabric nvidia-smi --query-gpu=index,fabric.state,fabric.status --format=csv,noheader
section gpu_processes nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader
section driver_loaded cat /proc/driver/nvidia/version
section driver_installed modinfo -F version nvidia
section driver_license modinfo -F license nvidia
section fabricmanager systemctl show --property=LoadState,ActiveState,SubState nvidia-fabricmanager
# grep finds nothing on a healthy node, which is a reading too.
shell_section kernel_log \
  '{ journalctl --dmesg --boot --no-pager --quiet 2>/dev/null || dmesg; } | { grep -E "NVRM|nvidia|\befa" |
    grep -v "ommand line:" || true; } | tail -n 300'

# Packages and kernel.
shell_section packages \
  'dpkg-query -W -f "\${db:Status-Abbrev}\${Package} \${Version}\n" |
   { grep -E "^.. ?(nvidia-fabricmanager|nvidia-imex|rdma-core|libfabric|efa|linux-image-)" || true; }'
section held apt-mark showhold
section unattended_upgrades systemctl show --property=LoadState,UnitFileState,ActiveState unattended-upgrades
shell_section upgrade_setting 'apt-config dump | { grep -E "^APT::Periodic::Unattended-Upgrade" || true; }'
section dkms dkms status
section cuda_link readlink -e /usr/local/cuda
section cuda_version cat /usr/local/cuda/version.json

# EFA.
section efa_packages cat /opt/amazon/efa_installed_packages
section libfabric fi_info --version
section efa_module_loaded cat /sys/module/efa/version
section efa_module_installed modinfo -F version efa
section efa_provider fi_info -p efa -t FI_EP_RDM
# Without any device the folder is missing too.
shell_section rdma_devices \
  'cd /sys/class/infiniband 2>/dev/null || exit 0
   for each in *; do
     [[ -e $each ]] || continue
     driver=$(readlink -f "$each/device/driver")
     printf "%s driver=%s numa=%s state=%s\n" "$each" "${driver##*/}" \
       "$(cat "$each/device/numa_node" 2>/dev/null)" "$(cat "$each/ports/1/state" 2>/dev/null)"
   done'

# System.
shell_section ulimits 'printf "memlock %s\nnofile %s\n" "$(ulimit -l)" "$(ulimit -n)"'
section timedatectl timedatectl show --property=NTPSynchronized
section chrony chronyc -n tracking
section shared_memory df -Pk /dev/shm
for path in ${paths[@]+"${paths[@]}"}; do
  # findmnt and df wait for ever on a dead network mount; the time limit is what tells.
  shell_section "path $path" \
    '[[ -d $1 ]] && printf "exists yes\n" || printf "exists no\n"
     nearest=$1
     while [[ ! -e $nearest && $nearest == */* && $nearest != / ]]; do nearest=$(dirname "$nearest"); done
     [[ -w $nearest ]] && printf "writable yes\n" || printf "writable no\n"
     printf "mount %s\n" "$(findmnt -n -o TARGET,FSTYPE,SOURCE --target "$nearest")"
     df -Pk "$nearest"' "$path"
done
for port in ${ports[@]+"${ports[@]}"}; do
  shell_section "port $port" "ss -Hltnp 'sport = :$port'"
done
if [[ -n $disk ]]; then
  limit=120
  # Direct, so that memory does not answer in the volume's place.
  shell_section disk_speed \
    'file=$(mktemp "$1/.toolkit-doctor-XXXXXXXX") || exit 1
     trap "rm -f \"$file\"" EXIT
     dd if=/dev/zero of="$file" bs=16M count=64 oflag=direct conv=fsync 2>&1 | tail -n 1 | sed "s/^/write /"
     dd if="$file" of=/dev/null bs=16M iflag=direct 2>&1 | tail -n 1 | sed "s/^/read /"' "$disk"
fi
exit 0
