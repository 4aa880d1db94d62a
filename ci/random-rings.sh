#!/usr/bin/env bash
# Runs random io_uring programs on the kernel and on the drop-in, and compares what they print:
# ci/random-rings.sh [COUNT [FIRST]]
#
# COUNT is 100,000 by default, FIRST the first seed (1). A program has up to twenty entries, on a
# queue that overflows. Entries are reads and writes of files and pipes, also with flags, closes,
# links, drains, timeouts, cancels, and messages to two rings. Half of the programs have requests
# that wait, on pipes, sockets, listeners, epolls, futexes and children. Some of these requests use
# files and buffers that are registered with tags, or buffers of groups, and some are multishot.
# Requests that wait end by data or clients, by cancels (also by descriptor), or with their thread.
# Some programs fork while requests wait, or have several processes use one ring.
# From Linux 6.16 on, there are also commands to sockets, pipes, sends without a copy, and cloned
# buffers. Rings are of all modes, DEFER_TASKRUN too. Exits with 2 at the first difference, and
# prints it. If the kernel itself gives several answers to a program, this is no difference; such
# programs are counted.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
count="${1:-100000}"
first="${2:-1}"
[[ "$count" =~ ^[1-9][0-9]*$ && "$first" =~ ^[1-9][0-9]*$ ]] || die "expected two numbers"
need cc
cd -- "$root"
cargo build --release -p uringlet-io-uring
library="$target/release/liburing.so"
folder="$(mktemp -d)"
trap 'rm -rf -- "$folder"' EXIT
cc -std=gnu11 -pthread -o "$folder/random" io-uring/tests/c/random.c -luring
cd -- "$folder"

# Prints the seeds whose programs differ.
differing() {
    awk '/^program / { seed = $2; seeds[seed] }
        { text[FILENAME, seed] = text[FILENAME, seed] "\n" $0 }
        END { for (seed in seeds)
            if (text[ARGV[1], seed] != text[ARGV[2], seed]) print seed }' theirs ours
}

# Prints what the program with the seed $differs has printed, from a file.
of_seed() {
    awk -v seed="$differs" '/^program / { is_it = $2 == seed } is_it' "$1"
}

# Does the kernel give more than one answer to this program?
is_uncertain() {
    local round
    ./random "$1" 1 >first
    for ((round = 0; round < 100; round++)); do
        ./random "$1" 1 >next
        cmp -s first next || return 0
    done
    return 1
}

step=1000
uncertain=0
for ((seed = first; seed < first + count; seed += step)); do
    timeout 120 ./random "$seed" "$step" >theirs || die "from seed $seed, on the kernel"
    LD_PRELOAD="$library" timeout 120 ./random "$seed" "$step" >ours || die "from seed $seed"
    for differs in $(differing); do
        is_uncertain "$differs" || {
            # Prints the outputs that differed: another run may not differ.
            diff <(of_seed theirs) <(of_seed ours) | head -n 20 || true
            die "a difference of seed $differs: the kernel (<) and ours (>)"
        }
        uncertain=$((uncertain + 1))
    done
done
printf 'random-rings: seeds %d to %d, no difference; %d the kernel itself answers differently\n' \
    "$first" "$((seed - 1))" "$uncertain"
