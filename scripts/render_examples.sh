#!/usr/bin/env bash
# Render each helm/weir/ci/NAME-values.yaml to helm/weir/examples/NAME/rendered.yaml, for reviewers to read as a diff.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
chart=$root/helm/weir
rm -rf "$chart/examples"
for values in "$chart"/ci/*-values.yaml; do
  name=$(basename "$values" -values.yaml)
  mkdir -p "$chart/examples/$name"
  "$root/.tools/helm-4" template demo "$chart" --namespace llm --kube-version 1.32.0 --values "$values" \
    >"$chart/examples/$name/rendered.yaml"
done
