#!/usr/bin/env bash
# Build all images and push them; print the chart's values that name them by digest.
#
#   push_images.sh REGISTRY [TARGET...]     as in push_images.sh registry.example.com/team cuda sidecar; default: all three
#
# TAG: default the chart's appVersion. TORCH_INDEX, BASE: build arguments, see the Dockerfile.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
registry=${1:?usage: push_images.sh REGISTRY [TARGET...]}
shift
tag=${TAG:-$(sed -n 's/^appVersion: "\(.*\)"$/\1/p' "$root/helm/weir/Chart.yaml")}
storage=${STORAGE:-${XDG_CACHE_HOME:-$HOME/.cache}/weir-images}
flags=()
for name in TORCH_INDEX BASE; do
  [[ -z ${!name:-} ]] || flags+=(--build-arg "$name=${!name}")
done

push() { # IMAGE: prints its digest
  local file
  file=$(mktemp)
  if command -v buildah >/dev/null; then
    buildah --root "$storage" push --digestfile "$file" "$1" >&2
  else
    docker push "$1" >&2
    docker inspect --format '{{index .RepoDigests 0}}' "$1" | sed 's/.*@//' >"$file"
  fi
  cat "$file"
  rm "$file"
}

values=""
for target in "${@:-cuda cpu sidecar}"; do
  for one in $target; do
    case $one in
      cuda) name=weir key=image ;;
      cpu) name=weir-cpu key=image ;;
      sidecar) name=weir-sidecar key=sidecar.image ;;
      *) echo "no target $one: cuda, cpu or sidecar" >&2 && exit 2 ;;
    esac
    "$root/scripts/build_image.sh" "$one" "$registry/$name:$tag" "${flags[@]}" >&2
    digest=$(push "$registry/$name:$tag")
    values+="# Image of target $one"$'\n'
    if [[ $key == image ]]; then
      # Values have one engine image; a second one is for another release.
      [[ $values != *"image: {repository"* ]] || values+="# "
      values+="image: {repository: $registry/$name, digest: \"$digest\"}"$'\n'
    else
      values+="sidecar: {image: {repository: $registry/$name, digest: \"$digest\"}}"$'\n'
    fi
  done
done
printf '%s' "$values"
