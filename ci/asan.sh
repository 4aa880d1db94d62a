#!/usr/bin/env bash
# Runs the tests of uringlet::fs under AddressSanitizer, which finds memory that is used after it
# was freed: ci/asan.sh [ARGUMENTS OF cargo test]
#
# Needs rustup and the nightly toolchain. Some tests drop futures of operations before these are
# complete. URINGLET_STORM sets the number of such operations, 20,000 by default here.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
tests=("$@")
((${#tests[@]})) || tests=(--test fs)
command -v rustup >/dev/null || die "rustup is missing"
cd -- "$root"
host="$(rustc +nightly -vV | sed -n 's/^host: //p')"
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address"
# At the end of the tests, a heap check finds memory without references. A test asks for more memory
# than there is: it gets none, as without the sanitizer.
options="detect_stack_use_after_return=1:detect_leaks=1:allocator_may_return_null=1"
export ASAN_OPTIONS="${ASAN_OPTIONS:-$options}"
export URINGLET_STORM="${URINGLET_STORM:-20000}"
export CARGO_TARGET_DIR="$target/asan"
log="$(mktemp)"
known="$(mktemp)"
trap 'rm -f -- "$log" "$known"' EXIT
# The heap check does not search mapped memory, in which the request slots are. So it would report
# the memory that a slot keeps for its next request.
echo 'leak:uringlet::exec::copy_in' >"$known"
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$known:print_suppressions=0}"
cargo +nightly test --target "$host" -p uringlet --features faulty,tokio,futures-io,stream,bytes \
    "${tests[@]}" |& tee -- "$log"
grep -q '^test result: ok\. [1-9]' "$log" || die "no test has run"
