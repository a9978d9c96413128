#!/usr/bin/env bash
# Takes out any other NVIDIA driver. The official images install theirs with NVIDIA's run-file, which apt knows
# nothing of, and hold a fabric manager package of that version.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

uninstaller=/usr/bin/nvidia-uninstall

others() { pd_packages | pd_other_driver_packages "$PD_DRIVER" | xargs; }

# Versions of the module that are not the wanted one, as dkms has them.
other_modules() { pd_dkms nvidia | awk -v wanted="$PD_DRIVER" '$1 != "absent" && $1 != wanted {print $1}' | xargs; }

check() {
  pd_expect "packages of other drivers" "none" "$(others | grep . || echo none)" "remove them by hand with apt-get purge" || return
  pd_expect "driver of the run-file" "none" "$([[ -x $uninstaller ]] && echo "$uninstaller" || echo none)" \
    "see /var/log/nvidia-uninstall.log" || return
  pd_expect "other nvidia modules in dkms" "none" "$(other_modules | grep . || echo none)" "remove them with dkms remove"
}

change() {
  local version packages
  pd_units "it holds the old driver" stop nvidia-dcgm dcgm nvidia-fabricmanager nvidia-imex nvidia-persistenced \
    parallelcluster_nvidia gdrdrv
  if [[ -x $uninstaller ]]; then
    pd_do "the old driver came from a run-file" "$uninstaller" --silent
  fi
  packages=$(others)
  if [[ -n $packages ]]; then
    # shellcheck disable=SC2086
    pd_apt "the old driver's packages" purge --allow-change-held-packages $packages
  fi
  for version in $(other_modules); do
    pd_do "the old driver's module" dkms remove "nvidia/$version" --all
  done
}

pd_step "no NVIDIA driver but $PD_DRIVER"
