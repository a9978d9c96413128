#!/usr/bin/env bash
# The EFA installer: kernel modules efa and efa-nv-peermem (dkms), rdma-core and libfabric, each in the version that
# belongs to it. It replaces an older installation by itself.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

url=${PD_EFA_URL:-https://efa-installer.amazonaws.com/aws-efa-installer-$PD_EFA.tar.gz}
sha256=$(pd_version efa_installer_sha256)
libfabric=$(pd_version libfabric)
record=/opt/amazon/efa_installed_packages
log=/var/log/pd-efa-installer.log

check() {
  pd_expect "EFA installer" "$PD_EFA" "$(if [[ -f $record ]]; then pd_efa_installer_version <"$record"; fi)" "read $log" ||
    return
  pd_expect "libfabric" "$libfabric" "$(/opt/amazon/efa/bin/fi_info --version 2>&1 | pd_libfabric_version)" "read $log" ||
    return
  pd_expect "efa module in dkms for $PD_KERNEL" "installed" "$(pd_dkms efa | awk '{$1 = ""; print substr($0, 2)}')" \
    "read the make.log under /var/lib/dkms/efa"
}

change() {
  local folder
  folder=$(mktemp -d /var/tmp/pd-efa-XXXXXX)
  # A failed step leaves no half a gigabyte behind.
  # shellcheck disable=SC2064
  trap "rm -rf '$folder'" EXIT
  pd_download "$url" "$folder/installer.tar.gz" "$sha256"
  pd_apt "the installer asks apt for its dependencies" update
  if pd_dry; then
    pd_say "would run: ./efa_installer.sh -y (EFA $PD_EFA)"
    return
  fi
  tar -xzf "$folder/installer.tar.gz" -C "$folder"
  pd_say "run: ./efa_installer.sh -y (EFA $PD_EFA; its output is in $log)"
  (cd "$folder/aws-efa-installer" && ./efa_installer.sh -y) >>"$log" 2>&1 ||
    pd_fail "efa_installer.sh" "exit 0" "exit $?: $(tail -n 1 "$log")" "read $log"
  if [[ $(pd_dkms efa) != *" installed" ]]; then
    pd_do "the module for the held kernel" dkms install "efa/$(pd_dkms efa | awk '{print $1}')" -k "$PD_KERNEL"
  fi
}

pd_step "EFA installer $PD_EFA"
