#!/usr/bin/env bash
# Measures event loops that sleep on an eventfd: ci/event-loops.sh [WHAT CACHE SIZE DEPTH]...
#
# WHAT is read or write, and CACHE is cached or direct. Natively the loop uses Linux AIO and
# io_uring. On this project it uses the C interface (context), and libaio on the drop-in (drop-in).
# For each cell, ROUNDS rounds (5) of LENGTH seconds (0.7) run the four in changing order. The table
# has medians of requests per second, and of CPU microseconds per request. The ratio of context is
# to the better native side, and that of the drop-in to Linux AIO. Ratios are taken in each round;
# the table has their median, minimum and maximum. Without cells, it measures the depths 1, 4 and
# 32. FOLDER is for a file of 256 MiB (target/ by default). PROFILE is the build of this project
# (release).
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
(($# % 4 == 0)) || die "WHAT CACHE SIZE DEPTH, for each cell (--help)"
need cc
built="$target/${PROFILE:-release}"
for library in liburinglet_capi.so libaio.so; do
    [[ -f "$built/$library" ]] || die "$built/$library is not there:" \
        "cargo build --release -p uringlet-capi -p uringlet-libaio"
done
rounds="${ROUNDS:-5}" length="${LENGTH:-0.7}"
mkdir -p -- "${FOLDER:-$target}"
scratch="$(mktemp -d "${FOLDER:-$target}/event-loops.XXXXXX")"
trap 'rm -rf -- "$scratch"' EXIT
cp -- "$built/liburinglet_capi.so" "$scratch/liburinglet.so.0"
cc -O2 -o "$scratch/loop" -I"$root/capi/include" "$root/ci/event-loops.c" -laio -luring \
    "$scratch/liburinglet.so.0" -Wl,-rpath,"$scratch"
head -c $((256 << 20)) /dev/urandom >"$scratch/data"
sync "$scratch/data"

# Prints requests per second, and the CPU time per request, of one side.
side() {
    local interface="$1" preload=''
    [[ "$interface" != drop-in ]] || preload="$built/libaio.so" interface=libaio
    LD_PRELOAD="$preload" timeout 120 "$scratch/loop" "$interface" "$scratch/data" "${@:2}" \
        "$length"
}

print_cell() {
    local round at side sides=(libaio io_uring context drop-in)
    # Earlier cells have left dirty pages, and pages that are not in memory any more.
    sync -- "$scratch/data"
    cat -- "$scratch/data" >/dev/null
    for ((round = 0; round < rounds; round++)); do
        for at in 0 1 2 3; do
            side="${sides[(at + round) % 4]}"
            printf '%s %s\n' "$side" "$(side "$side" "$@")"
        done
    done | awk -v what="$2 $1 $3, depth $4" "$awk_median"'
        function line(side,    i, own, cpus) {
            for (i = 1; i <= n[side]; i++) { own[i] = rate[side, i]; cpus[i] = cpu[side, i] }
            return sprintf(" %8.0f %5.1f", median(own, n[side]), median(cpus, n[side]))
        }
        function ratios(side,    i, all, best) {
            for (i = 1; i <= n[side]; i++) {
                best = rate["libaio", i]
                if (side == "context" && rate["io_uring", i] > best) best = rate["io_uring", i]
                all[i] = rate[side, i] / best
            }
            return sprintf(" %5.2f (%.2f..%.2f)", median(all, n[side]), all[1], all[n[side]])
        }
        { n[$1]++; rate[$1, n[$1]] = $2; cpu[$1, n[$1]] = $3 }
        END { printf "%-28s%s%s%s%s%s%s\n", what, line("libaio"), line("io_uring"),
                  line("context"), line("drop-in"), ratios("context"), ratios("drop-in") }'
}

printf 'kernel %s, %s CPUs, %s\n' "$(uname -r)" "$(nproc)" "$(file_system "$scratch")"
printf '%-28s %8s %5s %8s %5s %8s %5s %8s %5s %18s %18s\n' cell libaio us io_uring us context us \
    drop-in us 'context to best' 'drop-in to libaio'
if (($# == 0)); then
    for depth in 1 4 32; do
        set -- "$@" read direct 4096 "$depth" write direct 4096 "$depth" \
            read cached 4096 "$depth" write cached 1024 "$depth"
    done
fi
while (($#)); do
    print_cell "$1" "$2" "$3" "$4"
    shift 4
done
