#!/usr/bin/env bash
# Builds the workspace and runs all its tests: ci/test.sh [ARGUMENTS OF cargo test]
#
# TIMES is the number of runs of each test program (1 by default). If TIMES is set, a line sums up
# each run.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
times="${TIMES:-1}"
[[ "$times" =~ ^[1-9][0-9]*$ ]] || die "TIMES=$times: expected a number from 1 on"
"$root/ci/setup.sh"
cd -- "$root"
# Builds with the engine that makes faults, which is for tests only. Each build is of the whole
# workspace, and includes a test. So cargo chooses the same features of other crates each time, and
# builds each crate once.
of_all=(--workspace --features uringlet/faulty)
cargo build "${of_all[@]}" --lib --test small_stack
# Makes the drop-ins that the command carries, as in a release build. Tests copy this command and
# run it without other files.
carried="$target/debug/drop-ins"
mkdir -p -- "$carried"
for name in libaio.so libposix_aio.so liburing.so; do
    strip -o "$carried/$name.new" -- "$target/debug/$name"
    # An unchanged file is kept, so that the command is not built again.
    cmp -s -- "$carried/$name.new" "$carried/$name" || mv -- "$carried/$name.new" "$carried/$name"
    rm -f -- "$carried/$name.new"
done
export URINGLET_DROP_INS="$carried"
# Cargo runs test programs one after the other, although most programs mostly wait. So cargo only
# builds them here, and ci/later.sh notes how to run them.
programs="$(mktemp -d)"
trap 'rm -rf -- "$programs"' EXIT
export URINGLET_TEST_PROGRAMS="$programs"
tests=(cargo test --no-fail-fast --config "target.'cfg(all())'.runner = ['$root/ci/later.sh']")
status=0
# With these features, the types of uringlet::fs implement traits of other crates.
traits=uringlet/tokio,uringlet/futures-io,uringlet/stream,uringlet/bytes
"${tests[@]}" "${of_all[@]},$traits" --test fs "$@" || status=1
"${tests[@]}" "${of_all[@]}" "$@" || status=1

# Runs a noted program, and prints its output at its end in one piece. flock(1) locks the folder
# while a program's output is printed.
run() {
    local name="${1##*/}" ended=ok TIMEFORMAT='%1R s, CPU time %1U + %1S s' took
    flock -- "$URINGLET_TEST_PROGRAMS" printf '     Running %s\n' "${name#* }"
    took="$({ time bash -- "$1" >"$1.log" 2>&1; } 2>&1)" || ended="FAILED ($?)"
    flock -- "$URINGLET_TEST_PROGRAMS" cat -- "$1.log" - <<<"     Ran ${name#* }: $ended, $took"
    [[ "$ended" == ok ]] || touch -- "$1.failed"
}
export -f run
shopt -s nullglob
noted=("$programs"/*)
for ((time = 1; time <= times; time++)); do
    started=$SECONDS
    ((${#noted[@]} == 0)) || printf '%s\0' "${noted[@]}" |
        xargs -0 -P "$(($(nproc) + 1))" -n 1 bash -c 'run "$1"' -
    failed=("$programs"/*.failed)
    if ((${#failed[@]})); then
        status=1
        rm -- "${failed[@]}"
        failed=("${failed[@]##*/}")
        printf '\nfailed programs:\n'
        printf '  %s\n' "${failed[@]%.failed}"
    fi
    [[ -z "${TIMES-}" ]] || printf 'run %d of %d: %d programs, %d failed, %d s\n' \
        "$time" "$times" "${#noted[@]}" "${#failed[@]}" "$((SECONDS - started))"
done
exit "$status"
