#!/usr/bin/env bash
# Measures an echo server on the io_uring drop-in against the kernel's io_uring and against epoll:
# ci/echo.sh [KIND CONNECTIONS SIZE]...
#
# KIND is unix (pairs of sockets) or tcp (loopback). The three servers have the same shape
# (ci/echo.c), and their clients are in another process. KIND CONNECTIONS SIZE is a cell of the
# table. For each cell, ROUNDS rounds (5) run the three servers in changing order, with ECHOES
# echoes each (40,000). The table has the medians of echoes per second, and of the server's CPU
# microseconds per echo. Ratios are taken in each round; the table has their median, minimum and
# maximum. Without cells, it measures 1, 64 and 1,000 connections with 64 bytes and 16 KiB, over
# pairs of sockets. PROFILE is the build of this project (release).
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
(($# % 3 == 0)) || die "KIND CONNECTIONS SIZE, for each cell (--help)"
need cc
library="$target/${PROFILE:-release}/liburing.so"
[[ -f "$library" ]] || die "$library is not there: cargo build --release -p uringlet-io-uring"
rounds="${ROUNDS:-5}" echoes="${ECHOES:-40000}"
scratch="$(mktemp -d)"
trap 'rm -rf -- "$scratch"' EXIT
cc -O2 -o "$scratch/echo" "$root/ci/echo.c" -luring

# Prints echoes per second, and the CPU time per echo, of one server.
side() {
    local server="$1" kind="$2" connections="$3" size="$4" preload=''
    [[ "$server" != ours ]] || preload="$library" server=io_uring
    [[ "$server" != native ]] || server=io_uring
    LD_PRELOAD="$preload" timeout 120 "$scratch/echo" "$server" "$kind" "$connections" \
        $((echoes / connections + 1)) "$size"
}

print_cell() {
    local round at server sides=(native epoll ours)
    for ((round = 0; round < rounds; round++)); do
        for at in 0 1 2; do
            server="${sides[(at + round) % 3]}"
            printf '%s %s\n' "$server" "$(side "$server" "$@")"
        done
    done | awk -v what="$1 $2 x $3" "$awk_median"'
        function line(side,    i, own, cpus) {
            for (i = 1; i <= n[side]; i++) { own[i] = rate[side, i]; cpus[i] = cpu[side, i] }
            return sprintf(" %9.0f %6.2f", median(own, n[side]), median(cpus, n[side]))
        }
        function ratios(side,    i, all) {
            for (i = 1; i <= n[side]; i++) all[i] = rate["ours", i] / rate[side, i]
            return sprintf(" %6.2f (%.2f..%.2f)", median(all, n[side]), all[1], all[n[side]])
        }
        { n[$1]++; rate[$1, n[$1]] = $2; cpu[$1, n[$1]] = $3 }
        END { printf "%-18s%s%s%s%s%s\n", what, line("native"), line("epoll"), line("ours"),
                  ratios("native"), ratios("epoll") }'
}

printf 'kernel %s, %s CPUs\n' "$(uname -r)" "$(nproc)"
printf '%-18s %9s %6s %9s %6s %9s %6s %20s %20s\n' cell native/s us epoll/s us ours/s us \
    'to native' 'to epoll'
(($#)) || set -- unix 1 64 unix 64 64 unix 1000 64 unix 1 16384 unix 64 16384 unix 1000 16384
while (($#)); do
    print_cell "$1" "$2" "$3"
    shift 3
done
