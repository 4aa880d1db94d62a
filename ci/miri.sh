#!/usr/bin/env bash
# Runs the tests of queues, request slots and the small protocols under Miri, which finds undefined
# behaviour: ci/miri.sh [TEST…]
#
# Needs rustup; adds the components that it uses to the nightly toolchain.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
tests=("$@")
((${#tests[@]})) ||
    tests=(queue:: request:: zeros:: baton:: flight:: mailbox:: readers:: split:: syncs::)
command -v rustup >/dev/null || die "rustup is missing"
rustup component add --toolchain nightly miri rust-src
cd -- "$root"
# Addresses travel as integers in an Sqe (its layout is the kernel's), so provenance is exposed.
# Several seeds: Miri explores one schedule, and one choice of weak memory, per seed. A weak
# exchange that fails for no reason would be one more step than a test counts.
flags=(-Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-many-seeds=0..4
    -Zmiri-compare-exchange-weak-failure-rate=0)
export MIRIFLAGS="${MIRIFLAGS:-${flags[*]}}"
export CARGO_TARGET_DIR="$target/miri"
export PROPTEST_CASES="${PROPTEST_CASES:-8}"
cargo +nightly miri setup
log="$(mktemp)"
trap 'rm -f -- "$log"' EXIT
cargo +nightly miri test -p uringlet --lib -- "${tests[@]}" | tee -- "$log"
grep -q '^test result: ok\. [1-9]' "$log" || die "no test has run"
