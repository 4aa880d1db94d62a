#!/usr/bin/env bash
# Compares the C library with that of an earlier commit: ci/abi.sh COMMIT
#
# Fails if a symbol has gone or its type has changed, as abidiff (libabigail) sees it. New functions
# are fine.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
(($# == 1)) || die "expected COMMIT (--help)"
"$root/ci/setup.sh" --packages
cd -- "$root"
work="$(mktemp -d)"
trap 'git worktree remove --force "$work/before" 2>/dev/null || true; rm -rf -- "$work"' EXIT
git worktree add --quiet --detach "$work/before" "$1"

# Builds with debug information, from which abidiff reads the types. Nothing is optimized, because
# that would take long.
build() {
    (cd -- "$1" && CARGO_TARGET_DIR="$target/abi" cargo rustc --locked -p uringlet-capi \
        --crate-type cdylib)
    cp -- "$target/abi/debug/liburinglet_capi.so" "$2"
}
build "$work/before" "$work/before.so"
build "$root" "$work/now.so"
# In abidiff's status, 1 and 2 are errors of the tool, 4 a change, and 8 an incompatible change.
status=0
abidiff --drop-private-types --headers-dir1 "$work/before/capi/include" \
    --headers-dir2 "$root/capi/include" "$work/before.so" "$work/now.so" || status=$?
if ((status & 1 || status & 2)); then
    die "abidiff failed ($status)"
fi
((!(status & 8)))
