#!/usr/bin/env bash
# Fabric manager and IMEX of exactly the driver's version: with another, CUDA ends with error 802 on a node with
# NVSwitches. ParallelCluster starts fabric manager at boot where it finds more than one NVSwitch, and IMEX where
# nodes share NVLink, so on the image both are off.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

# The newer packages have no branch in their name, the older ones do.
fabric=("nvidia-fabricmanager" "nvidia-fabricmanager-$PD_BRANCH")
imex=("nvidia-imex" "nvidia-imex-$PD_BRANCH")

# Upstream version of the one that is installed, as "version package".
installed() { pd_installed "$@" | awk '{version = $2; sub(/-[^-]*$/, "", version); print version, $1}'; }

# NVSwitches of A100 and H100/H200 hosts, as in ParallelCluster's cookbook.
nvswitches() {
  if ! command -v lspci >/dev/null; then echo 0; else { lspci -d 10de:1af1; lspci -d 10de:22a3; } | wc -l; fi
}

check() {
  local kind names
  for kind in fabric imex; do
    declare -n names_of=$kind
    pd_expect "version of ${names_of[0]}" "$PD_DRIVER" "$(installed "${names_of[@]}" | awk '{print $1}' | xargs)" \
      "install ${names_of[0]} of the driver's version" || return
  done
  names=$(installed "${fabric[@]}" "${imex[@]}" | awk '{print $2}' | xargs)
  # shellcheck disable=SC2086
  pd_expect "packages that are not held" "none" "$(pd_not_held $names | grep . || echo none)" "run this step again"
}

change() {
  local wanted
  pd_need_nvidia_repository
  wanted=$(pd_offered "$PD_DRIVER" "${fabric[@]}")
  wanted+=" $(pd_offered "$PD_DRIVER" "${imex[@]}")"
  # shellcheck disable=SC2086
  pd_install "equal to the driver" $wanted
  # shellcheck disable=SC2046,SC2086
  pd_hold $(printf '%s\n' $wanted | sed 's/=.*//')
  if (($(nvswitches) > 1)); then
    pd_units "this host has NVSwitches" enable nvidia-fabricmanager
  else
    pd_units "no NVSwitch here; ParallelCluster starts it on the nodes that have them" disable nvidia-fabricmanager
  fi
  pd_units "no NVLink domain of several nodes" disable nvidia-imex
}

pd_step "fabric manager and IMEX $PD_DRIVER"
