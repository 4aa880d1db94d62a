#!/usr/bin/env bash
# Looks for flaky tests: runs everything that ci/test.sh runs, repeatedly.
#
#   ci/repeat.sh [TIMES] [--burners COUNT]
#
# TIMES is 30 by default. COUNT shells burn CPU time beside the tests (0 by default). The output of
# the tests is in the file that the first line names.
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

log="$(mktemp)"
printf '%d runs, with %d burners; what they print: %s\n' "$times" "$burners" "$log"
burning=()
trap '((${#burning[@]} == 0)) || kill "${burning[@]}"' EXIT
for ((burner = 0; burner < burners; burner++)); do
    while :; do :; done &
    burning+=($!)
done
set +e
TIMES="$times" "$root/ci/test.sh" 2>&1 | tee -- "$log" |
    grep --line-buffered -E '^run [0-9]|: FAILED |^test .+ \.\.\. FAILED|^error'
# The exit status is that of ci/test.sh, which is the first command of the pipe.
exit "${PIPESTATUS[0]}"
