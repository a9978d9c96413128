#!/usr/bin/env bash
# The CUDA toolkit beside the older one, and /usr/local/cuda, which every build and ParallelCluster's image tags
# read, pointing at it. DCGM, where the image has it, in the build for this CUDA: the health check of nodes uses it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

toolkit="cuda-toolkit-${PD_CUDA//./-}"
home="/usr/local/cuda-$PD_CUDA"
dcgm="datacenter-gpu-manager-4-cuda${PD_CUDA%%.*}"

has_dcgm() { pd_packages | awk '$1 ~ /^.i$/ && $2 ~ /^datacenter-gpu-manager/ {found = 1} END {exit !found}'; }

check() {
  local names=("$toolkit")
  pd_expect "package $toolkit" "$toolkit" "$(pd_installed "$toolkit" | awk '{print $1}')" \
    "see whether apt offers it: apt-cache madison $toolkit" || return
  if has_dcgm; then
    names+=("$dcgm")
    pd_expect "DCGM for CUDA ${PD_CUDA%%.*}" "$dcgm" "$(pd_installed "$dcgm" | awk '{print $1}')" \
      "see whether apt offers it: apt-cache madison $dcgm" || return
  fi
  pd_expect "/usr/local/cuda" "$home" "$(readlink -f /usr/local/cuda)" "run: ln -sfn $home /usr/local/cuda" || return
  pd_expect "packages that are not held" "none" "$(pd_not_held "${names[@]}" | grep . || echo none)" "run this step again"
}

change() {
  local names=("$toolkit")
  pd_need_nvidia_repository
  if ! pd_dry && [[ -z $(pd_madison "$toolkit") ]]; then
    pd_fail "package $toolkit" "an apt repository that offers it" "none" "check NVIDIA's entry in /etc/apt/sources.list.d"
  fi
  if has_dcgm; then names+=("$dcgm"); fi
  pd_install "CUDA $PD_CUDA" "${names[@]}"
  pd_do "the toolkit that builds find" ln -sfn "$home" /usr/local/cuda
  pd_hold "${names[@]}"
}

pd_step "CUDA toolkit $PD_CUDA at /usr/local/cuda"
