#!/usr/bin/env bash
# Runs the loom models of the lock-free protocols between threads: ci/loom.sh [--quick]
#
# A model tries every interleaving with at most three preemptions, with --quick at most two.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
preemptions=3
case "${1-}" in
'') ;;
--quick) preemptions=2 ;;
*) die "unknown argument $1 (--help)" ;;
esac
cd -- "$root"
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-$preemptions}"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
export CARGO_TARGET_DIR="$target/loom"
log="$(mktemp)"
trap 'rm -f -- "$log"' EXIT
cargo test --release -p uringlet -p uringlet-io-uring --lib loom | tee -- "$log"
# cargo test succeeds even if its filter matches no test.
grep -q '^test result: ok\. [1-9]' "$log" || die "no loom model has run"
