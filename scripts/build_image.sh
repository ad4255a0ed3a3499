#!/usr/bin/env bash
# Build an image of weir with buildah or docker, whichever is there and works.
#
#   build_image.sh [cuda|cpu|sidecar] [TAG] [FLAG...]     flags go to the builder, as in --build-arg BASE=ubuntu:24.04
#
# With buildah, pip in the build uses this machine's pip configuration: its index, its certificates, its local folders.
# STORAGE: folder of buildah's images, default ~/.cache/weir-images.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${1:-cuda}
tag=${2:-weir-$target}
shift $(($# < 2 ? $# : 2))
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
revision=$(git -C "$root" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null || true)
set -- --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "$@"

if ! command -v buildah >/dev/null; then
  exec docker build --file "$root/Dockerfile" --target "$target" --tag "$tag" "$@" "$root"
fi

storage=${STORAGE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-images}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$storage"

# One line of flags: pip.conf, and each folder or file of this machine that it names.
python3 - "$scratch/pip.conf" >"$scratch/volumes" <<'PY'
import pathlib
import subprocess
import sys

CERT = "/etc/pip-ca.crt"
listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
options, mounts = {}, {}
# The environment is stronger than the files, so it comes last.
for line in sorted(listed.splitlines(), key=lambda text: text.startswith(":env:")):
    name, _, value = line.partition("=")
    value = value.strip("'\"").replace("\\n", " ")
    if name.endswith(".cert"):
        # Not at its own path: the image's package for certificates replaces that file.
        mounts[value], value = CERT, CERT
    options[name.rpartition(".")[2]] = value
    for word in value.split():
        path = pathlib.Path(word.removeprefix("file://"))
        if path.is_absolute() and path.exists() and word != CERT:
            # A local index refers to files that lie beside it.
            folder = str(path.parent if word.startswith("file://") else path)
            mounts[folder] = folder
lines = ["[global]", *(f"{name} = {value}" for name, value in options.items())]
pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
for source, place in mounts.items():
    print(f"--volume={source}:{place}:ro")
PY
mapfile -t volumes <"$scratch/volumes"

driver=overlay
if ! buildah --storage-driver overlay --root "$storage/overlay" --runroot "$storage/run-overlay" info >/dev/null 2>&1; then
  driver=vfs
fi
buildah --storage-driver "$driver" --root "$storage/$driver" --runroot "$storage/run-$driver" bud \
  --isolation chroot --layers \
  --volume "$scratch/pip.conf:/etc/pip.conf:ro" "${volumes[@]}" \
  --file "$root/Dockerfile" --target "$target" --tag "$tag" "$@" "$root"
