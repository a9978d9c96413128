#!/usr/bin/env bash
# Changes nothing: every module that a node needs is built for the held kernel. A broken one would show only on a
# node that costs as much as a capacity reservation does.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

check() {
  local module
  for module in nvidia efa efa-nv-peermem gdrdrv; do
    pd_expect "$module in dkms for $PD_KERNEL" "installed" "$(pd_dkms "$module" | sed 's/^[^ ]* //')" \
      "read the make.log under /var/lib/dkms/$module, then run the step that installs it" || return
  done
}

change() { pd_dry || pd_fail "${PD_PROBLEM[@]}"; }

pd_step "every module is built for $PD_KERNEL"
