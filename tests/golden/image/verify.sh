#!/usr/bin/env bash
# OnNodeConfigured: says whether this node is what its jobs need, and changes nothing. ParallelCluster runs it at
# every start of a node; exit 1 fails the node, and the lines below are in its cloud-init log.
#
#   verify.sh ROLE [--driver V] [--cuda V] [--kernel V] [--efa-installer V] [--efa-module V] [--efa-devices N]
#                  [--engine-env DIR] [--toolkit-env DIR] [--mount DIR]... [--root DIR]
#
# ROLE is gpu, head or router. What no option names is not checked; drivers, EFA and the engine only on a gpu node.
# --root reads files below another folder, for tests.
# Without errexit: whatever a tool prints or fails at, every other check is still made.
set -uo pipefail
export LC_ALL=C
# What a text that a tool printed says. Every function reads standard input and changes nothing, so that each decision
# of the steps is tested with recorded outputs.
# shellcheck shell=bash

# Any text on one line, with single blanks and without what a terminal would act on.
pd_one_line() { LC_ALL=C tr -s '[:space:]' ' ' | LC_ALL=C tr -d '[:cntrl:]' | sed 's/^ //; s/ $//'; }

# KEY: its value in versions.yaml; keys below another are written "engine.vllm". Fails if there is none.
pd_yaml_value() {
  awk -v wanted="$1" '
    /^[a-z0-9_]+:[ ]*(#.*)?$/ {section = $1; sub(/:.*/, ".", section); next}
    /^[a-z0-9_]+:/            {section = ""}
    match($0, /^ *[a-z0-9_]+: +/) {
      key = substr($0, 1, RLENGTH); gsub(/[ :]/, "", key)
      value = substr($0, RLENGTH + 1)
      if (value ~ /^"/) {sub(/^"/, "", value); sub(/".*/, "", value)} else {sub(/ +#.*/, "", value)}
      if (section key == wanted) {print value; found = 1; exit}
    }
    END {exit !found}'
}

# VERSION PACKAGE...: the first of these packages of which `apt-cache madison` offers that upstream version, as
# "package=debian-version". Fails if none is offered.
pd_pick_package() {
  local version=$1
  shift
  awk -F '|' -v version="$version" -v names="$*" '
    {
      for (i = 1; i <= 2; i++) gsub(/^ +| +$/, "", $i)
      upstream = $2; sub(/^[0-9]+:/, "", upstream); sub(/-[^-]*$/, "", upstream)
      if (upstream == version && !($1 in offered)) offered[$1] = $2
    }
    END {
      count = split(names, wanted, " ")
      for (i = 1; i <= count; i++) if (wanted[i] in offered) {print wanted[i] "=" offered[wanted[i]]; exit 0}
      exit 1
    }'
}

# VERSION: from lines "status package version" (dpkg-query), the installed packages of any other NVIDIA driver.
# A driver's packages are known by name and by a version such as 570.172.08; the container toolkit (1.17) and
# Ubuntu's CUDA (12.0) have other versions and stay.
pd_other_driver_packages() {
  awk -v version="$1" '
    $1 !~ /^.[nc]/ && $2 ~ /^(lib)?nvidia-|^xserver-xorg-video-nvidia|^libxnvctrl|^cuda-drivers/ {
      upstream = $3; sub(/^[0-9]+:/, "", upstream); sub(/-[^-]*$/, "", upstream)
      if (upstream ~ /^[3-9][0-9][0-9]\.[0-9]+(\.[0-9]+)?$/ && upstream != version) print $2
    }'
}

# KERNEL: from lines "status package version", the packages that decide which kernel is installed: those of the kernel
# itself, and the metapackages that would bring another.
pd_kernel_packages() {
  awk -v kernel="$1" '
    $1 !~ /^.[nc]/ && $2 ~ /^linux-(image|headers|modules|modules-extra)-/ && index($2, "-" kernel) {print $2; next}
    $1 !~ /^.[nc]/ && $2 ~ /^linux-(image-|headers-|modules-extra-)?aws/ {print $2; next}
    $1 !~ /^.[nc]/ && $2 == "linux-base" {print $2}' | sort -u
}

# KERNEL: from lines "status package version", the newer kernels that are installed beside it; grub would boot one.
pd_newer_kernels() {
  local kernel=$1 other
  awk '$1 !~ /^.[nc]/ && $2 ~ /^linux-image-(unsigned-)?[0-9]/ {sub(/^linux-image-(unsigned-)?/, "", $2); print $2}' |
    while IFS= read -r other; do
      if dpkg --compare-versions "$other" gt "$kernel"; then printf '%s\n' "$other"; fi
    done
}

# MODULE KERNEL: what `dkms status` says of it, one "VERSION STATE" a line; "absent" if dkms does not know the module.
# Reads dkms 3 ("nvidia/580.126.16, 6.14.0-1018-aws, x86_64: installed") and dkms 2 ("nvidia, 580.126.16, ...").
pd_dkms_state() {
  awk -v module="$1" -v kernel="$2" '
    {
      state = $0; sub(/^.*: /, "", state); sub(/ *\([Oo]riginal[ _]modules? exists?\)/, "", state)
      head = $0; sub(/: [^:]*$/, "", head)
      if (head !~ /^[^,]*\//) sub(/, */, "/", head)
      count = split(head, part, /, */); split(part[1], name, "/")
      if (name[1] != module) next
      known = 1; version = name[2]; versions[version] = 1
      if (count == 1 || part[2] == kernel) found[version] = state
    }
    END {
      if (!known) print "absent"
      for (version in versions) print version, (version in found ? found[version] : "not built")
    }' | sort
}

# The version of the loaded module in /proc/driver/nvidia/version, closed or open.
pd_loaded_driver() {
  awk '/^NVRM version:/ {for (i = 1; i <= NF; i++) if ($i ~ /^[0-9]+(\.[0-9]+)+$/) {print $i; exit}}'
}

# The installer's version in /opt/amazon/efa_installed_packages.
pd_efa_installer_version() { sed -n 's/^# EFA installer version: *//p' | head -n 1; }

# The version in `fi_info --version`, whose line reads "libfabric: 2.6.0amzn1.0".
pd_libfabric_version() { sed -n 's/^libfabric: *//p' | head -n 1; }

usage() {
  printf 'pd-verify: %s; usage: verify.sh gpu|head|router [--driver V] [--cuda V] [--kernel V] [--efa-installer V] %s\n' \
    "$1" "[--efa-module V] [--efa-devices N] [--engine-env DIR] [--toolkit-env DIR] [--mount DIR]... [--root DIR]" >&2
  exit 2
}

role=${1:-}
[[ $role =~ ^(gpu|head|router)$ ]] || usage "the first argument is '$role'"
shift
driver='' cuda='' kernel='' efa_installer='' efa_module='' efa_devices='' engine_env='' toolkit_env='' root='' mounts=()
while (($#)); do
  (($# > 1)) || usage "'$1' has no value"
  case $1 in
    --mount) mounts+=("$2") ;;
    --driver | --cuda | --kernel | --efa-installer | --efa-module | --efa-devices | --engine-env | --toolkit-env | --root)
      name=${1#--}
      printf -v "${name//-/_}" %s "$2"
      ;;
    *) usage "there is no '$1'" ;;
  esac
  shift 2
done

problems=0

# WHAT EXPECTED FOUND NEXT: one line if they differ, whatever text was found.
expect() {
  local found=$3
  [[ $2 == "$found" ]] && return
  found=$(pd_one_line <<<"$found" | cut -c 1-300)
  printf 'pd-verify: %s: expected %s, found %s; %s\n' "$1" "$2" "${found:-nothing}" "$4" >&2
  problems=$((problems + 1))
}

# A vendor's command: what it printed, or what it said instead. One that hangs must not hold the node.
ask() { timeout 30 "$@" 2>&1 </dev/null | head -n 40 | tr -d '\000'; }

rebuild='build the image again (toolkit image build)'

verify_driver() {
  local loaded
  loaded=$(pd_loaded_driver 2>/dev/null <"$root/proc/driver/nvidia/version")
  expect "loaded nvidia module" "$driver" "$loaded" "see dmesg for NVRM; $rebuild"
  expect "nvidia module on disk" "$driver" "$(ask modinfo -F version nvidia)" "$rebuild"
  expect "licence of the nvidia module" "Dual MIT/GPL" "$(ask modinfo -F license nvidia)" \
    "EFA needs the open modules; $rebuild"
  expect "nvidia-smi" "$driver" \
    "$(ask nvidia-smi --query-gpu=driver_version --format=csv,noheader | sort -u | pd_one_line)" \
    "the driver was changed under the loaded module: reboot, or $rebuild"
  expect "fabric manager" "$driver" "$(ask nv-fabricmanager --version | grep -a -o '[0-9]\+\(\.[0-9]\+\)\+' | head -n 1)" \
    "with another version CUDA ends with error 802; $rebuild"
}

verify_modules() {
  local module state running=$kernel
  expect "running kernel" "$kernel" "$(ask uname -r)" "the kernel was upgraded; hold it, or $rebuild"
  for module in nvidia efa efa-nv-peermem gdrdrv; do
    state=$(ask dkms status | pd_dkms_state "$module" "$running" | pd_one_line)
    expect "$module in dkms for $running" "installed" "${state#* }" "$rebuild"
  done
}

verify_efa() {
  local found endpoints
  if [[ -n $efa_installer ]]; then
    found=$(pd_efa_installer_version 2>/dev/null <"$root/opt/amazon/efa_installed_packages")
    expect "EFA installer" "$efa_installer" "$found" "$rebuild"
  fi
  if [[ -n $efa_module ]]; then
    expect "efa module" "$efa_module" "$(ask modinfo -F version efa)" "$rebuild"
  fi
  if [[ -n $efa_devices && $efa_devices != 0 ]]; then
    # Without any device the folder is missing too, which is 0.
    found=$(find "$root/sys/class/infiniband" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)
    expect "EFA devices in /sys/class/infiniband" "$efa_devices" "$found" \
      "the instance was started with other network interfaces: check Efa/Enabled of the queue"
    endpoints=$(PATH="$root/opt/amazon/efa/bin:$PATH" ask fi_info -p efa -t FI_EP_RDM)
    # One block a device; a warning may stand above the first.
    if grep -a -q '^provider: efa$' <<<"$endpoints"; then endpoints='provider: efa'; fi
    endpoints=${endpoints%%$'\n'*}
    expect "fi_info -p efa -t FI_EP_RDM" "provider: efa" "$endpoints" \
      "transfers would go over TCP: install the EFA software again, or $rebuild"
  fi
}

if [[ $role == gpu ]]; then
  if [[ -n $driver ]]; then verify_driver; fi
  if [[ -n $kernel ]]; then verify_modules; fi
  if [[ -n $cuda ]]; then
    expect "/usr/local/cuda" "$root/usr/local/cuda-$cuda" "$(readlink -f "$root/usr/local/cuda")" "$rebuild"
  fi
  verify_efa
  if [[ -n $engine_env ]]; then
    expect "engine environment" "$engine_env/bin/vllm" "$([[ -x $root$engine_env/bin/vllm ]] && echo "$engine_env/bin/vllm")" \
      "$rebuild"
  fi
fi
if [[ -n $toolkit_env ]]; then
  expect "toolkit environment" "$toolkit_env/bin/toolkit" \
    "$([[ -x $root$toolkit_env/bin/toolkit ]] && echo "$toolkit_env/bin/toolkit")" "$rebuild"
fi
for mount in ${mounts[@]+"${mounts[@]}"}; do
  expect "shared volume" "$mount mounted" \
    "$(awk -v mount="$mount" '$2 == mount {print mount " mounted"; exit}' "$root/proc/mounts" 2>/dev/null)" \
    "check the file system's state, its security group and SharedStorage of the cluster"
done

if ((problems)); then
  exit 1
fi
printf 'pd-verify: this %s node is as expected\n' "$role"
