# Shared by every job script; written into each, so that a script says all it does.
# shellcheck shell=bash disable=SC2329

pd_say() { printf '%s %s\n' "$(date '+%F %T')" "$*"; }

pd_fail() {
  pd_say "ERROR: $1" >&2
  exit "${2:-1}"
}

# The address under which other nodes reach this one.
pd_own_address() {
  local address
  address=$(getent ahostsv4 "$(hostname)" | awk '$1 !~ /^127\./ {print $1; exit}')
  if [[ -z $address ]]; then
    address=$(hostname -I | awk '{print $1}')
  fi
  [[ -n $address ]] || return 1
  printf '%s\n' "$address"
}

pd_port_answers() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# PORT ADDRESS: fails the job if somebody listens there, on all addresses or on this one.
pd_port_must_be_free() {
  local address
  for address in 127.0.0.1 "$2"; do
    if pd_port_answers "$address" "$1"; then
      pd_fail "port $1 on $(hostname) is in use; stop what listens there or set another port for this leg" 98
    fi
  done
}

# True when GET http://$1:$2/health answers 200.
pd_healthy() {
  local status=
  exec 3<>"/dev/tcp/$1/$2" || return 1
  printf 'GET /health HTTP/1.0\r\nHost: %s\r\n\r\n' "$1" >&3
  IFS=' ' read -r -t 5 _ status _ <&3 || true
  exec 3>&-
  [[ $status == 200 ]]
} 2>/dev/null

# What this node computes with, such as "8 x NVIDIA H200" or "1 x AMD EPYC core".
pd_hardware() {
  if command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name --format=csv,noheader >/dev/null 2>&1; then
    nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c |
      awk '{count = $1; $1 = ""; printf "%s%s x%s", (NR > 1 ? ", " : ""), count, $0}'
  else
    printf '%s x %s core' "$(nproc)" "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
  fi | tr -d '\042\134'
}

# Publishes an address once its /health answers 200: FILE NAME ADDRESS PORT. Others wait for the file.
pd_publish_when_healthy() {
  local file=$1 name=$2 address=$3 port=$4
  until pd_healthy "$address" "$port"; do sleep 0.5; done
  local published
  published=$(printf '{"name":"%s","url":"http://%s:%s","node":"%s","job_id":"%s","hardware":"%s"}' \
    "$name" "$address" "$port" "${SLURMD_NODENAME:-$(hostname)}" "$SLURM_JOB_ID" "$(pd_hardware)")
  # A server whose address nobody learns would run for nothing.
  if ! { mkdir -p "$(dirname "$file")" && printf '%s\n' "$published" >"$file.new" && mv "$file.new" "$file"; }; then
    rm -f "$file.new"
    pd_say "ERROR: can't write $file; is the disk full?" >&2 || true
    kill -USR1 $$
    return 1
  fi
  pd_say "$name is ready: http://$address:$port"
}

# Prints the URL that a job has published: FILE SECONDS.
pd_wait_for_address() {
  local file=$1 deadline=$((SECONDS + $2))
  until [[ -s $file ]]; do
    ((SECONDS < deadline)) || return 1
    sleep 0.5
  done
  sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$file"
}

pd_descendants() {
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null | tr '\n' ' '); do
    printf '%s\n' "$child"
    pd_descendants "$child"
  done
}

# Shared-memory files that this job's processes have open; a killed engine leaves them behind.
pd_shared_memory() {
  local pid
  for pid in $(pd_descendants $$); do
    sed -n 's#.* \(/dev/shm/psm_[A-Za-z0-9_]*\)$#\1#p' "/proc/$pid/maps" 2>/dev/null || true
  done | sort -u
}

# Runs a server: ENDPOINT_FILE COMMAND... It gets SIGTERM when the job is cancelled (Slurm tells only the
# batch shell), its address is withdrawn when it ends, and its exit status becomes the job's.
pd_run_server() {
  local endpoint=$1 status=0 segments=''
  shift
  # An engine leaves sockets in its temporary folder, so that one goes with the job.
  TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/pd-XXXXXXXX")
  export TMPDIR
  "$@" &
  local server=$! stopping='' unpublished=''
  trap 'stopping=1; segments=$(pd_shared_memory); kill -TERM "$server" 2>/dev/null || true' TERM INT
  trap 'unpublished=1; kill -TERM "$server" 2>/dev/null || true' USR1
  # A trapped signal ends `wait` early, so wait again until the server itself is gone.
  while kill -0 "$server" 2>/dev/null; do
    wait "$server" && status=0 || status=$?
  done
  rm -f "$endpoint"
  if [[ -n ${pd_watcher:-} ]]; then kill "$pd_watcher" 2>/dev/null || true; fi
  rm -rf "$TMPDIR"
  local segment
  for segment in $segments; do rm -f "$segment"; done
  # An engine's last words may lack their line end.
  printf '\n'
  if [[ -n $unpublished ]]; then
    return 96
  fi
  if [[ -n $stopping ]]; then
    pd_say "stopped on request"
    return 0
  fi
  pd_say "ERROR: the server ended by itself with status $status" >&2
  return $((status == 0 ? 1 : status))
}
