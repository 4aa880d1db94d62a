#!/usr/bin/env bash
# Runs the conformance suite under ThreadSanitizer: ci/tsan.sh [ARGUMENTS OF cargo test]
#
# Without arguments, it runs the suite on the engines auto and workers, except the tests that this
# script names. Needs rustup; adds rust-src to the nightly toolchain.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
command -v rustup >/dev/null || die "rustup is missing"
rustup component add --toolchain nightly rust-src
cd -- "$root"
host="$(rustc +nightly -vV | sed -n 's/^host: //p')"
# The standard library is built, too, because the sanitizer has to see the library's
# synchronization.
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=thread"
# Idle workers at the end of the process are not joined, which is no leak. The child of a fork makes
# threads of its own, which the sanitizer would refuse.
options="second_deadlock_stack=1 history_size=4 report_thread_leaks=0 die_after_fork=0"
export TSAN_OPTIONS="${TSAN_OPTIONS:-$options}"
export CARGO_TARGET_DIR="$target/tsan"
tests=(cargo +nightly test --release -Zbuild-std --target "$host")
if (($#)); then
    exec "${tests[@]}" "$@"
fi

# Leaves out a test: not_run TEST REASON. Each reason is a limit of the sanitizer, not a fault of
# the engine.
not_run() {
    printf 'SKIPPED %s: %s\n' "$1" "$2" >&2
    skips+=(--skip "$1")
}
skips=()
not_run matrix "runs the suite in processes of its own"
not_run ten_thousand_contexts "measures memory, of which the sanitizer keeps some"
for test in an_idle_context_uses_no_cpu a_waiter_behind_blocked_opens_uses_no_cpu; do
    not_run "$test" "the sanitizer has a thread of its own, which wakes every 100 ms"
done
not_run huge_lengths "its plain write(2) has a length beyond its buffer, which is reported"
export URINGLET_STRESS_REQUESTS="${URINGLET_STRESS_REQUESTS:-100000}"
for engine in auto workers; do
    URINGLET_TEST_ENGINE="$engine" "${tests[@]}" -p uringlet --test conformance -- "${skips[@]}"
done
