#!/usr/bin/env bash
# Runs tests under Miri, which finds undefined behaviour: ci/miri.sh [--quick | TEST…]
#
# Runs first the tests of the queues, the request slots and the lock-free protocols, each with
# several schedules. Then it runs the whole engine: uringlet::fs, the stress test of the conformance
# suite, and the tests of operations that the stand-in for the kernel (core/src/sys/miri.rs) has.
# Then it runs the tests of the front ends that make no system call of their own. --quick runs one
# schedule of each test. With TESTs, which are names of the library's unit tests, only these run.
# Needs rustup; adds Miri's components to the nightly toolchain.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
seeds=4
[[ "${1-}" != --quick ]] || { seeds=1 && shift; }
words=("$@")
((${#words[@]})) ||
    words=(queue:: request:: lazy_zeroed:: baton:: flight:: mailbox:: readers:: reaper:: seats::
        syncs:: fs::wakers::)
command -v rustup >/dev/null || die "rustup is missing"
rustup component add --toolchain nightly miri rust-src
cd -- "$root"
# Addresses are integers in an Sqe (its layout is the kernel's), so provenance is exposed. Weak
# exchanges must not fail spuriously, because tests count the steps.
flags=(-Zmiri-permissive-provenance -Zmiri-disable-isolation
    -Zmiri-compare-exchange-weak-failure-rate=0)
export CARGO_TARGET_DIR="$target/miri"
export PROPTEST_CASES="${PROPTEST_CASES:-8}"
cargo +nightly miri setup
log="$(mktemp)"
trap 'rm -f -- "$log"' EXIT

# Runs tests under Miri: miri FLAGS PACKAGE ARGUMENTS OF cargo miri test
miri() {
    MIRIFLAGS="${MIRIFLAGS:-${flags[*]} $1}" cargo +nightly miri test -p "$2" "${@:3}" |
        tee -- "$log"
    grep -q '^test result: ok\. [1-9]' "$log" || die "no test has run"
}

# Miri explores one schedule, and one choice of weak memory, per seed.
miri "-Zmiri-many-seeds=0..$seeds" uringlet --lib -- "${words[@]}"
(($# == 0)) || exit 0

# Threads of the engine outlive a test, which is no leak: they end after an idle time.
export URINGLET_STRESS_REQUESTS="${URINGLET_STRESS_REQUESTS:-300}"
conformance=(stress:: operations::a_read_across operations::character_devices
    operations::file_position operations::nop_ operations::reads_and_writes
    operations::transfers_at_the operations::vectored_transfers operations::vectors_of_none)
miri -Zmiri-ignore-leaks uringlet --lib -- fs::tests::
for engine in auto workers; do
    URINGLET_TEST_ENGINE="$engine" miri "-Zmiri-ignore-leaks -Zmiri-no-short-fd-operations" \
        uringlet --test conformance -- "${conformance[@]}"
done
for package in uringlet-capi uringlet-posix-aio uringlet-io-uring; do
    miri -Zmiri-ignore-leaks "$package" --lib
done
# Runs only these tests of the package: the others ask the kernel about descriptors.
miri -Zmiri-ignore-leaks uringlet-libaio --lib -- abi::
