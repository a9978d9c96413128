#!/usr/bin/env bash
# gdrdrv and efa-nv-peermem use symbols of the nvidia module, so they are built again after it. Without them the
# GPU's memory is not reachable for EFA and gdrcopy, and transfers go through the host's.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

dependent=(gdrdrv efa-nv-peermem)

check() {
  local module
  for module in "${dependent[@]}"; do
    pd_expect "$module in dkms for $PD_KERNEL" "installed" "$(pd_dkms "$module" | sed 's/^[^ ]* //')" \
      "read the make.log under /var/lib/dkms/$module" || return
    pd_expect "$module built after the nvidia module" "yes" \
      "$([[ $(pd_module_file "$module") -nt $(pd_module_file nvidia) ]] && echo yes || echo no)" \
      "run: dkms build --force and dkms install --force for $module" || return
  done
}

change() {
  local module version
  for module in "${dependent[@]}"; do
    version=$(pd_dkms "$module" | awk '{print $1}')
    if [[ $version == absent ]]; then
      if pd_dry; then
        pd_say "would build $module for $PD_KERNEL (not here yet)"
        continue
      fi
      pd_fail "$module" "known to dkms" "absent" \
        "gdrdrv comes with the official ParallelCluster image, efa-nv-peermem with the EFA installer: check both"
    fi
    pd_do "built against the new driver" dkms build --force "$module/$version" -k "$PD_KERNEL"
    pd_do "built against the new driver" dkms install --force "$module/$version" -k "$PD_KERNEL"
  done
}

pd_step "gdrdrv and efa-nv-peermem built for driver $PD_DRIVER"
