#!/usr/bin/env bash
# Package the chart into dist/, and push it as an OCI artifact where a registry is given.
#
#   package_chart.sh [oci://REGISTRY/PATH]
#
# DIGEST, SIDECAR_DIGEST: sha256:..., written into the packaged values, so that the chart names its images by content.
# SIGN_KEY (and KEYRING): sign it; `helm verify` and `helm install --verify` read the .prov file beside the archive.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
helm=${HELM:-$root/.tools/helm-4}
out=$root/dist
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

mkdir -p "$out"
cp -r "$root/helm/weir" "$scratch/weir"
rm -rf "$scratch/weir/ci" "$scratch/weir/examples"
python3 - "$scratch/weir/values.yaml" "${DIGEST:-}" "${SIDECAR_DIGEST:-}" <<'PY'
import pathlib
import re
import sys

file, *digests = sys.argv[1:]
text = pathlib.Path(file).read_text()
places = list(re.finditer(r'^ +digest: ""$', text, re.MULTILINE))
if len(places) != len(digests):
    sys.exit(f"values.yaml has {len(places)} digests, expected {len(digests)}")
for place, digest in reversed(list(zip(places, digests, strict=True))):
    if digest and not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        sys.exit(f"not a digest: {digest}")
    text = text[: place.start()] + place[0].replace('""', f'"{digest}"') + text[place.end() :]
pathlib.Path(file).write_text(text)
PY
flags=()
[[ -z ${SIGN_KEY:-} ]] || flags=(--sign --key "$SIGN_KEY" ${KEYRING:+--keyring "$KEYRING"})
"$helm" package "$scratch/weir" --destination "$out" "${flags[@]}"
if [[ -n ${1:-} ]]; then
  version=$(sed -n 's/^version: //p' "$scratch/weir/Chart.yaml")
  "$helm" push "$out/weir-$version.tgz" "$1"
fi
