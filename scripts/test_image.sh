#!/usr/bin/env bash
# Build the CPU image on a base from debootstrap, and run it as Kubernetes would: its own entrypoint as PID 1 and as its
# own user, a read-only root, a read-only model folder. Then: ready over gRPC, a completion, SIGTERM while a stream
# runs; the stream must finish, new work must be refused, and the exit code must be 0.
#
# Needs root, buildah, debootstrap, the project's .venv and the model folder MODEL.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model=${MODEL:-$root/models/smollm2-135m-instruct}
storage=${STORAGE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-images}
python=$root/.venv/bin/python
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
container=
server=
clean() {
  [[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
  [[ -z $container ]] || store rm "$container" >/dev/null || true
  rm -rf "$scratch"
}
trap clean EXIT

if ! store inspect --type image weir-base >/dev/null 2>&1; then
  echo "== base from debootstrap"
  debootstrap --variant=minbase bookworm "$scratch/base" >"$scratch/debootstrap.log"
  container=$(store from scratch)
  store copy --quiet "$container" "$scratch/base" /
  store commit --quiet "$container" weir-base
  store rm "$container" >/dev/null
  container=
fi

echo "== build"
"$root/scripts/build_image.sh" cpu weir-cpu --build-arg BASE=localhost/weir-base >"$scratch/build.log" 2>&1 \
  || { tail -40 "$scratch/build.log"; exit 1; }

container=$(store from localhost/weir-cpu)
image=$(store mount "$container")
store inspect --type image --format '{{.OCIv1.Config.User}}' localhost/weir-cpu | grep -qx 10001:10001
mapfile -t entrypoint < <(store inspect --type image --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' \
  localhost/weir-cpu | sed '/^$/d')
mapfile -t environment < <(store inspect --type image --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' \
  localhost/weir-cpu | sed '/^$/d')
mkdir -p "$image/models/model"

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$scratch/run" <<RUN
set -eu
mount --make-rprivate /
mount --bind "$image" "$image"
mount --bind -o ro "$model" "$image/models/model"
mount -o remount,bind,ro "$image/models/model"
for folder in tmp cache run/weir dev/shm; do
  mount -t tmpfs -o mode=1777 tmpfs "$image/\$folder" 2>/dev/null || { mkdir -p "$image/\$folder"; mount -t tmpfs -o mode=1777 tmpfs "$image/\$folder"; }
done
mount -t proc proc "$image/proc"
for device in null urandom random zero; do
  touch "$image/dev/\$device"
  mount --bind "/dev/\$device" "$image/dev/\$device"
done
mount -o remount,bind,ro "$image"
exec chroot --userspec=10001:10001 "$image" /usr/bin/env -i "\$@"
RUN

echo "== run"
unshare --mount --pid --fork bash "$scratch/run" "${environment[@]}" \
  "${entrypoint[@]}" serve --model /models/model --host 127.0.0.1 --port "$port" --metrics-port 0 \
  --admin-address unix:/run/weir/admin.sock --kv-memory 256MiB --drain-timeout 60 \
  >"$scratch/server.log" 2>&1 &
unshare_pid=$!

# From outside of its PID namespace a signal reaches PID 1 only if it has a handler, as under a kubelet.
for _ in $(seq 100); do
  server=$(pgrep --parent "$unshare_pid" || true)
  [[ -n $server ]] && break
  sleep 0.1
done
[[ -n $server ]] || { cat "$scratch/server.log"; exit 1; }

if ! "$python" "$root/scripts/image_client.py" --target "127.0.0.1:$port" --server-pid "$server"; then
  echo "== server log"
  cat "$scratch/server.log"
  exit 1
fi
code=0
wait "$unshare_pid" || code=$?
server=
if [[ $code -ne 0 ]]; then
  cat "$scratch/server.log"
  echo "the server's exit code is $code, not 0" >&2
  exit 1
fi
echo "== passed: the stream finished and the exit code is 0"
