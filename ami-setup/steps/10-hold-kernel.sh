#!/usr/bin/env bash
# The kernel stays: every module below is built for it, and a newer one at the next boot would have none of them.
# ParallelCluster's own build component takes its holds back when it ends, so this step comes after it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

# modules-extra has drm_client_lib, without which nvidia-drm does not load on Ubuntu 24.04's 6.14 kernels.
needed=("linux-image-$PD_KERNEL" "linux-headers-$PD_KERNEL" "linux-modules-extra-$PD_KERNEL")

kernel_packages() { pd_packages | pd_kernel_packages "$PD_KERNEL"; }

check() {
  local held
  pd_expect "kernel packages" "$(printf '%s\n' "${needed[@]}" | sort | xargs)" \
    "$(pd_installed "${needed[@]}" | awk '{print $1}' | sort | xargs)" \
    "build on the parent image that versions.yaml names" || return
  # shellcheck disable=SC2046
  held=$(pd_not_held $(kernel_packages)) || return
  pd_expect "kernel packages that are not held" "none" "${held:-none}" "run this step again" || return
  pd_expect "newer kernels, of which one would boot" "none" \
    "$(pd_packages | pd_newer_kernels "$PD_KERNEL" | xargs | grep . || echo none)" \
    "remove them, or build on the parent image that versions.yaml names"
}

change() {
  if [[ -z $(pd_installed "linux-image-$PD_KERNEL") ]]; then
    pd_fail "kernel of this image" "$PD_KERNEL" "$(pd_packages | awk '$2 ~ /^linux-image-[0-9]/ {print $2}' | xargs)" \
      "build on the parent image that versions.yaml names"
  fi
  if [[ $(pd_installed "${needed[@]}" | wc -l) -lt ${#needed[@]} ]]; then
    pd_apt "lists what apt offers" update
    pd_install "modules are built with the headers" "${needed[@]}"
  fi
  # shellcheck disable=SC2046
  pd_hold $(kernel_packages)
}

pd_step "kernel $PD_KERNEL is installed and held"
