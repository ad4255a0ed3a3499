#!/usr/bin/env bash
# Build the CPU image and the sidecar's on a base from debootstrap, and run them as Kubernetes would: their own
# entrypoint as PID 1 and as their own user, a read-only root, a read-only model folder, a folder shared for the admin
# socket. Then: ready over gRPC, a write of the sidecar to the Kubernetes API, its end, a completion, SIGTERM while a
# stream runs; the stream must finish, new work must be refused, and the exit codes must be 0. A change of code alone must
# leave every layer but the last as it is, and that one below 5 MB; the sidecar's image must stay below 200 MB.
#
# Needs root, buildah, debootstrap, the project's .venv and the model folder MODEL.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model=${MODEL:-$root/models/smollm2-135m-instruct}
storage=${STORAGE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-images}
python=$root/.venv/bin/python
base=weir-base:slim
export STORAGE=$storage

# The storage driver that build_image.sh picks.
driver=overlay
if ! buildah --storage-driver overlay --root "$storage/overlay" --runroot "$storage/run-overlay" info >/dev/null 2>&1; then
  driver=vfs
fi
store() {
  buildah --storage-driver "$driver" --root "$storage/$driver" --runroot "$storage/run-$driver" "$@"
}

scratch=$(mktemp -d)
containers=()
processes=()
clean() {
  for process in "${processes[@]}"; do kill -KILL "$process" 2>/dev/null || true; done
  for container in "${containers[@]}"; do store rm "$container" >/dev/null || true; done
  rm -rf "$scratch"
}
trap clean EXIT

fail() {
  echo "$1" >&2
  exit 1
}

# As the slim images of Debian: without documentation, translations and lists of packages.
make_base() {
  local folder=$scratch/base container
  debootstrap --variant=minbase bookworm "$folder" >"$scratch/debootstrap.log"
  rm -rf "$folder"/usr/share/{doc,info,locale,man}/* "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/*
  printf 'path-exclude /usr/share/%s/*\n' doc info locale man >"$folder/etc/dpkg/dpkg.cfg.d/slim"
  container=$(store from scratch)
  containers+=("$container")
  store copy --quiet "$container" "$folder" /
  store commit --quiet "$container" "$base"
}

# FOLDER TARGET TAG: from the tree in FOLDER.
build() {
  "$1/scripts/build_image.sh" "$2" "$3" --build-arg "BASE=localhost/$base" >"$scratch/build.log" 2>&1 \
    || { tail -40 "$scratch/build.log"; exit 1; }
}

inspect() {
  store inspect --type image --format "$2" "localhost/$1" | sed '/^$/d'
}

layers() {
  inspect "$1" '{{range .OCIv1.RootFS.DiffIDs}}{{println .}}{{end}}'
}

# The folder where an image is mounted, in `mounted`.
mount_image() {
  local container
  container=$(store from "localhost/$1")
  containers+=("$container")
  mounted=$(store mount "$container")
}

# FOLDER: the size of its files in MB, as images are counted.
megabytes() {
  du --summarize --apparent-size --block-size=1MB --one-file-system "$1" | cut -f1
}

cat >"$scratch/run" <<'RUN'
# IMAGE [SOURCE:TARGET:MODE]... -- ENV... COMMAND: in namespaces of its own, with a read-only root.
set -eu
image=$1
shift
mount --make-rprivate /
mount --bind "$image" "$image"
for folder in tmp cache dev/shm; do
  mkdir -p "$image/$folder"
  mount -t tmpfs -o mode=1777 tmpfs "$image/$folder"
done
while [ "$1" != -- ]; do
  IFS=: read -r source target mode <<<"$1"
  mkdir -p "$image/$target"
  mount --bind "$source" "$image/$target"
  mount -o "remount,bind,$mode" "$image/$target"
  shift
done
shift
mount -t proc proc "$image/proc"
for device in null urandom random zero; do
  touch "$image/dev/$device"
  mount --bind "/dev/$device" "$image/dev/$device"
done
mount -o remount,bind,ro "$image"
exec chroot --userspec=10001:10001 "$image" /usr/bin/env -i "$@"
RUN

# TAG [SOURCE:TARGET:MODE]... -- [ENV...] -- FLAG...: start an image's own entrypoint. Sets `unshare_pid`, which ends with
# its exit code, and `process`, its PID 1 as seen from here. From outside of its PID namespace a signal reaches PID 1
# only if it has a handler, as under a kubelet.
start() {
  local tag=$1 mounts=() given=() entrypoint environment
  shift
  while [[ $1 != -- ]]; do mounts+=("$1"); shift; done
  shift
  while [[ $1 != -- ]]; do given+=("$1"); shift; done
  shift
  [[ $(inspect "$tag" '{{.OCIv1.Config.User}}') == 10001:10001 ]] || fail "$tag has another user"
  mapfile -t entrypoint < <(inspect "$tag" '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}')
  mapfile -t environment < <(inspect "$tag" '{{range .OCIv1.Config.Env}}{{println .}}{{end}}')
  mount_image "$tag"
  unshare --mount --pid --fork bash "$scratch/run" "$mounted" "${mounts[@]}" -- "${environment[@]}" "${given[@]}" \
    "${entrypoint[@]}" "$@" >"$scratch/$tag.log" 2>&1 &
  unshare_pid=$!
  process=
  for _ in $(seq 100); do
    process=$(pgrep --parent "$unshare_pid" || true)
    [[ -z $process ]] || break
    sleep 0.1
  done
  [[ -n $process ]] || { cat "$scratch/$tag.log"; fail "$tag did not start"; }
  processes+=("$process")
}

# TAG PID: wait for the end of an image, which must be a clean one.
ends_well() {
  local code=0
  wait "$2" || code=$?
  [[ $code -eq 0 ]] || { cat "$scratch/$1.log"; fail "the exit code of $1 is $code, not 0"; }
}

if ! store inspect --type image "$base" >/dev/null 2>&1; then
  echo "== base from debootstrap"
  make_base
fi

echo "== build"
build "$root" sidecar weir-sidecar
build "$root" cpu weir-cpu

echo "== build again, with a change of code alone"
mkdir "$scratch/changed"
cp -a "$root"/{.dockerignore,Dockerfile,pyproject.toml,README.md,LICENSE,CHANGELOG.md} \
  "$root"/{requirements,scripts,proto,kernels,service} "$scratch/changed"
echo "# changed" >>"$scratch/changed/service/weir/exit_codes.py"
for target in sidecar cpu; do
  build "$scratch/changed" "$target" "weir-$target-changed"
  [[ $(layers "weir-$target" | head -n -1) == "$(layers "weir-$target-changed" | head -n -1)" ]] \
    || fail "a change of code alone changes more than the last layer of $target"
  [[ $(layers "weir-$target") != "$(layers "weir-$target-changed")" ]] || fail "$target does not have the changed code"
  mount_image "weir-$target"
  echo "weir-$target: $(layers "weir-$target" | wc -l) layers, $(megabytes "$mounted") MB;" \
    "the code, its last layer: $(megabytes "$mounted/opt/app") MB"
  [[ $(megabytes "$mounted/opt/app") -lt 5 ]] || fail "the layer of the code is not below 5 MB"
  [[ $target != sidecar || $(megabytes "$mounted") -lt 200 ]] || fail "the sidecar's image is not below 200 MB"
done

echo "== run"
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir "$scratch/shared" "$scratch/token"
chmod 1777 "$scratch/shared"
start weir-cpu "$model:/models/model:ro" "$scratch/shared:/run/weir:rw" -- -- \
  serve --model /models/model --host 127.0.0.1 --port "$port" --metrics-port 0 \
  --admin-address unix:/run/weir/admin.sock --kv-memory 256MiB --drain-timeout 60
server=$process
server_unshare=$unshare_pid

(cd "$root" && exec "$python" -m scripts.image_api_server --folder "$scratch/token") >"$scratch/api-server" 2>&1 &
api_server=$!
processes+=("$api_server")
for _ in $(seq 100); do
  [[ ! -s $scratch/api-server ]] || break
  sleep 0.1
done
mapfile -t pod < <(head -n 5 "$scratch/api-server")
start weir-sidecar "$scratch/token:/run/secrets/kubernetes.io/serviceaccount:ro" "$scratch/shared:/run/weir:ro" \
  -- "${pod[@]}" -- sidecar --admin-address unix:/run/weir/admin.sock --host 127.0.0.1 --port 0 --readiness-gate --interval 0.2
wait "$api_server" || { cat "$scratch/api-server" "$scratch/weir-sidecar.log"; fail "the sidecar wrote nothing"; }
tail -n 1 "$scratch/api-server"
kill -TERM "$process"
ends_well weir-sidecar "$unshare_pid"

if ! "$python" "$root/scripts/image_client.py" --target "127.0.0.1:$port" --server-pid "$server"; then
  echo "== server log"
  cat "$scratch/weir-cpu.log"
  exit 1
fi
ends_well weir-cpu "$server_unshare"
echo "== passed: the sidecar wrote, the stream finished, and the exit codes are 0"
