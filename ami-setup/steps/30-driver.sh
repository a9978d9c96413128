#!/usr/bin/env bash
# The NVIDIA driver with open kernel modules, built by dkms for the held kernel. The one that runs is another until
# the next boot. From packages, not from the run-file: that one loads nvidia-drm to try it, which fails where
# drm_client_lib is not loaded (aws-parallelcluster-cookbook pull request 3031).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

pin=/etc/apt/preferences.d/pd-nvidia-driver
# NVIDIA drops the branch from its package names from driver 590 on.
driver=("nvidia-open-$PD_BRANCH" "nvidia-driver-$PD_BRANCH-open" nvidia-open)
modules=("nvidia-dkms-$PD_BRANCH-open" nvidia-dkms-open)

wanted_pin() {
  printf '%s\n' "# Newer drivers in the repository are no candidates, also not as a dependency." \
    "Package: nvidia-* libnvidia-* cuda-drivers* libxnvctrl* xserver-xorg-video-nvidia*" \
    "Pin: version $PD_DRIVER-*" "Pin-Priority: 1001"
}

# The names of this driver's packages that are installed.
packages() { pd_packages | awk -v driver="$PD_DRIVER" '$1 ~ /^.i$/ && $2 ~ /nvidia/ && index($3, driver "-") {print $2}'; }

check() {
  local names
  pd_expect "nvidia module in dkms for $PD_KERNEL" "$PD_DRIVER installed" "$(pd_dkms nvidia)" \
    "read /var/lib/dkms/nvidia/$PD_DRIVER/build/make.log" || return
  pd_expect "version of the nvidia module" "$PD_DRIVER" "$(modinfo -k "$PD_KERNEL" -F version nvidia 2>&1)" \
    "remove the module that depmod prefers" || return
  # The open modules are under MIT and GPL, the closed ones under NVIDIA's licence.
  pd_expect "licence of the nvidia module" "Dual MIT/GPL" "$(modinfo -k "$PD_KERNEL" -F license nvidia 2>&1)" \
    "install nvidia-dkms-$PD_BRANCH-open in place of the closed module" || return
  pd_expect "nvidia-smi" "/usr/bin/nvidia-smi" "$(command -v nvidia-smi)" "install nvidia-utils-$PD_BRANCH" || return
  names=$(packages | xargs)
  pd_expect "driver packages" "some" "${names:+some}" "see 'dpkg -l' for nvidia packages of $PD_DRIVER" || return
  # shellcheck disable=SC2086
  pd_expect "driver packages that are not held" "none" "$(pd_not_held $names | grep . || echo none)" "run this step again" ||
    return
  pd_expect "pin of the driver's version" "$(wanted_pin)" "$(cat "$pin" 2>/dev/null)" "run this step again"
}

change() {
  local packages_to_install
  pd_need_nvidia_repository
  packages_to_install=$(pd_offered "$PD_DRIVER" "${driver[@]}")
  packages_to_install+=" $(pd_offered "$PD_DRIVER" "${modules[@]}")"
  if pd_dry; then
    pd_say "would write $pin (only $PD_DRIVER is a candidate)"
  else
    pd_say "write $pin (only $PD_DRIVER is a candidate)"
    wanted_pin >"$pin"
  fi
  # shellcheck disable=SC2086
  pd_install "the driver, with open modules" $packages_to_install
  # The package builds for the kernel that runs, which is another within an image that is built in a chroot.
  if [[ $(pd_dkms nvidia) != "$PD_DRIVER installed" ]]; then
    pd_do "the module for the held kernel" dkms install "nvidia/$PD_DRIVER" -k "$PD_KERNEL"
  fi
  # shellcheck disable=SC2046
  pd_hold $(packages | grep . || printf '%s' "${driver[0]}")
}

pd_step "NVIDIA driver $PD_DRIVER with open modules for $PD_KERNEL"
