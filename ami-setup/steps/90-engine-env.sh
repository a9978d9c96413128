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
