#!/usr/bin/env bash
# Runs random io_uring programs on the kernel and on the drop-in, and compares what they print:
# ci/random-rings.sh [COUNT [FIRST]]
#
# COUNT is 100,000 unless it is told, FIRST the first seed (1). A program has up to sixteen entries:
# reads and writes of files and pipes, links, drains, timeouts and cancels, on a queue that
# overflows. Exits with 1 at the first difference, and says from which seed on it is.
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
cc -std=gnu11 -O1 -pthread -o "$folder/random" io-uring/tests/c/random.c -luring
cd -- "$folder"
step=1000
for ((seed = first; seed < first + count; seed += step)); do
    timeout 120 ./random "$seed" "$step" >theirs || die "from seed $seed, on the kernel"
    LD_PRELOAD="$library" timeout 120 ./random "$seed" "$step" >ours || die "from seed $seed"
    if ! diff theirs ours >difference; then
        head -n 20 difference
        die "a difference from seed $seed on: the kernel (<) and ours (>)"
    fi
done
printf 'random-rings: seeds %d to %d, no difference\n' "$first" "$((seed - 1))"
