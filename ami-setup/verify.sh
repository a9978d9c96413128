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
# shellcheck source-path=SCRIPTDIR source=facts.sh
. "$(dirname "$0")/facts.sh"

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
