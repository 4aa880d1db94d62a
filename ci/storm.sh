#!/usr/bin/env bash
# Drops a million futures of uringlet::fs at every poll and in every state, on five executors, and
# kills a thousand processes that replace a file: ci/storm.sh [OPERATIONS]
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
export URINGLET_STORM="${1:-1000000}"
cd -- "$root"
log="$(mktemp)"
trap 'rm -f -- "$log"' EXIT
cargo test --release -p uringlet --features faulty,tokio,futures-io,bytes --test fs \
    -- storms replacing |& tee -- "$log"
grep -q '^test result: ok\. [1-9]' "$log" || die "no test has run"
