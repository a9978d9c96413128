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
