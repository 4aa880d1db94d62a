#!/usr/bin/env bash
# Polls after each of ten million buffered writes; no poll may miss its completion: ci/polls.sh
# [WRITES]
#
# A poll is a wait for zero completions. Runs for each engine that executes buffered requests in
# user space: first alone, then beside four processes that burn CPU time.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
cd -- "$root"
export URINGLET_TEST_POLLS="${1:-10000000}"
burners=()
trap '((${#burners[@]} == 0)) || kill -- "${burners[@]}"' EXIT
run() {
    local engine
    for engine in auto workers; do
        printf '\n=== %s, %s\n' "$engine" "$1"
        URINGLET_TEST_ENGINE="$engine" cargo test --release -p uringlet --features faulty \
            --test conformance -- --exact \
            promises::polls::a_poll_sees_each_buffered_write_that_was_submitted_before_it
    done
}
run quiet
for _ in 1 2 3 4; do
    while :; do :; done &
    burners+=($!)
done
run 'four burners'
