#!/usr/bin/env bash
# Writes and reads files with Python's turbofile, natively and on the drop-in for io_uring, and
# checks them: ci/turbofile.sh
#
# Needs Python 3.12 or later, named by PYTHON (python3 by default). pip fetches turbofile; nothing
# of it is kept in the repository. FORBID is the drop-in's sandbox (docker by default). Fails if a
# file is wrong, or if at most 1,000 requests went through uringlet.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
python="${PYTHON:-python3}"
need "$python"
uringlet="$(uringlet_command)"
folder="$target/turbofile"
if [[ ! -e "$folder/complete" ]]; then
    "$python" -m venv "$folder"
    "$folder/bin/pip" install -q turbofile==0.1.5
    touch -- "$folder/complete"
fi
scratch="$(mktemp -d -p "$target")"
trap 'rm -rf -- "$scratch"' EXIT
here=("$uringlet" run --forbid "${FORBID:-docker}" --stats-json "$scratch/stats" --)
for side in natively here; do
    before=()
    [[ "$side" == natively ]] || before=("${here[@]}")
    printf '%-10s' "$side:"
    "${before[@]}" "$folder/bin/python" "$root/ci/turbofile_tasks.py" "$scratch"
done
total='import json, sys; print(json.load(open(sys.argv[1]))["totals"]["requests"])'
requests="$("$python" -c "$total" "$scratch/stats")"
((requests > 1000)) || die "requests through uringlet: $requests"
echo "$requests requests through uringlet"
