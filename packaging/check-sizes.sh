#!/usr/bin/env bash
# Fails if the command or a drop-in has grown too large: packaging/check-sizes.sh FOLDER
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../ci/common.sh"
help_if_asked "$@"
(($# == 1)) || die "expected FOLDER (--help)"
status=0
check() {
    local size
    size="$(stat -L -c %s -- "$1")"
    printf '%s: %s bytes, of at most %s\n' "$1" "$size" "$2"
    ((size <= $2)) || {
        printf '%s is TOO LARGE\n' "$1" >&2
        status=1
    }
}
check "$1/uringlet" 12000000
check "$1/liburing.so" 1700000
for name in libaio.so libposix_aio.so liburinglet_capi.so; do
    check "$1/$name" 1500000
done
exit "$status"
