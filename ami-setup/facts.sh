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
