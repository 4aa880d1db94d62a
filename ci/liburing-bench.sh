#!/usr/bin/env bash
# Measures the io_uring drop-in against the kernel's io_uring, both through liburing:
# ci/liburing-bench.sh FOLDER [CASE DEPTH]...
#
# CASE DEPTH is a cell of the table. For each cell, ROUNDS rounds (7) run both sides in alternating
# order, for SECONDS_EACH seconds (0.5) each. The file has MEGABYTES MiB (256). The table has the
# medians of requests per second, and of CPU time per request of all threads. Ratios are taken in
# each round; the table has their median, minimum and maximum. Without cells, it measures all for
# which the project has a bar: a ratio that must be reached. PROFILE is the build of this project
# (release). The exit status is 1 if no round of a cell reaches its bar.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
folder="${1-}"
[[ -d "$folder" ]] || die "in which folder? (--help)"
shift
(($# % 2 == 0)) || die "CASE DEPTH: the depth of ${!#} is missing"
need cc
library="$target/${PROFILE:-release}/liburing.so"
[[ -f "$library" ]] || die "$library is not there: cargo build --release -p uringlet-io-uring"
rounds="${ROUNDS:-7}"
seconds="${SECONDS_EACH:-0.5}"
scratch="$(mktemp -d -- "$folder/liburing-bench-XXXXXX")"
trap 'rm -rf -- "$scratch"' EXIT
cc -O2 -o "$scratch/bench" "$root/ci/liburing-bench.c" -luring
data="$scratch/data"
# The file has to be larger than what a round reads from the disk, and smaller than memory.
dd if=/dev/zero of="$data" bs=1M count="${MEGABYTES:-256}" conv=fsync status=none

side() {
    if [[ "$1" == ours ]]; then
        LD_PRELOAD="$library" "$scratch/bench" "$data" "$2" "$3" "$seconds"
    else
        "$scratch/bench" "$data" "$2" "$3" "$seconds"
    fi
}

missed=0
print_cell() {
    local case="$1" depth="$2" bar="$3" round first second
    local pairs="$scratch/pairs"
    : >"$pairs"
    # A run that does not count brings the pages that this case uses into memory.
    [[ "$case" == cold ]] || side native "$case" "$depth" >/dev/null
    for ((round = 0; round < rounds; round++)); do
        if ((round % 2)); then
            second="$(side ours "$case" "$depth")"
            first="$(side native "$case" "$depth")"
        else
            first="$(side native "$case" "$depth")"
            second="$(side ours "$case" "$depth")"
        fi
        printf '%s %s\n' "$first" "$second" >>"$pairs"
    done
    awk -v what="$case" -v depth="$depth" -v bar="$bar" "$awk_median"'
        { n++; theirs[n] = $1; their_cpu[n] = $2; ours[n] = $3; our_cpu[n] = $4
          ratio[n] = $3 / $1 }
        END {
            middle = median(ratio, n)
            verdict = "open"
            if (bar == "") verdict = ""
            else if (middle >= bar) verdict = "reached"
            else if (ratio[n] < bar) verdict = "MISSED"
            printf "%-13s %5d %11.0f %11.0f %7.2f %7.2f..%-7.2f %8.0f %8.0f %6s %s\n", what, depth,
                median(theirs, n), median(ours, n), middle, ratio[1], ratio[n],
                median(their_cpu, n), median(our_cpu, n), bar, verdict
            exit verdict == "MISSED"
        }' "$pairs" || missed=1
}

print_machine "$folder"
printf '%-13s %5s %11s %11s %7s %16s %8s %8s %6s\n' case depth native/s ours/s ratio \
    'lowest..highest' 'CPU ns' 'ours' bar
if (($#)); then
    while (($#)); do
        print_cell "$1" "$2" ''
        shift 2
    done
else
    while read -r case depth bar; do
        print_cell "$case" "$depth" "$bar"
    done <<'CELLS'
nop 1 3
nop 32 3
write 1 15
write 8 1.3
write 32 1.05
read 1 1.0
read 32 1.0
cold 1 0.95
cold 32 0.95
direct 1 0.95
direct 32 0.95
direct-write 1 0.95
direct-write 32 0.95
CELLS
fi
exit "$missed"
