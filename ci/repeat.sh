#!/usr/bin/env bash
# Looks for tests that fail now and then: runs the tests of the library (its conformance suite
# included) and of the drop-ins again and again.
#
#   ci/repeat.sh [TIMES] [--burners COUNT]
#
# TIMES is 30 unless it is told. Beside the tests, COUNT shells burn CPU time (none unless it is
# told). The logs of runs that failed stay in the folder that the last line names.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
times=30
burners=0
while (($#)); do
    case "$1" in
    --burners)
        burners="${2:?--burners: the number of shells that burn CPU time}"
        shift
        ;;
    [1-9]*) times="$1" ;;
    *) die "$1: expected a number of runs or --burners COUNT" ;;
    esac
    shift
done

"$root/ci/setup.sh"
cd -- "$root"
tests=(cargo test -p uringlet -p uringlet-libaio -p uringlet-posix-aio
    --features uringlet/faulty --no-fail-fast)
# The drop-ins' tests preload what a build leaves behind, and some start the command.
cargo build --workspace
"${tests[@]}" --no-run

logs="$(mktemp -d)"
burning=()
trap '((${#burning[@]} == 0)) || kill "${burning[@]}"' EXIT
for ((burner = 0; burner < burners; burner++)); do
    while :; do :; done &
    burning+=($!)
done

failed=0
for ((run = 1; run <= times; run++)); do
    log="$logs/$run.log"
    started=$SECONDS
    if "${tests[@]}" >"$log" 2>&1; then
        printf 'run %d: ok, %d s\n' "$run" "$((SECONDS - started))"
        rm -- "$log"
    else
        failed=$((failed + 1))
        printf 'run %d: FAILED, %d s\n' "$run" "$((SECONDS - started))"
        grep -E '^test .+ \.\.\. FAILED|^error: test failed' "$log" || tail -n 5 -- "$log"
    fi
done
printf '%d of %d runs passed, with %d burners; logs of failures: %s\n' \
    "$((times - failed))" "$times" "$burners" "$logs"
((failed == 0))
