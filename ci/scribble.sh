#!/usr/bin/env bash
# Writes random bytes to the memory of io_uring's rings while they are entered: ci/scribble.sh
# [SECONDS [SEED]]
#
# One process for each CPU makes rings on the drop-in, one after the other, with different flags.
# Its main thread enters the ring with random entries, while another thread writes random bytes to
# the ring's memory. For one ring in four, a child process instead writes to all memory that it
# shares with its parent. No parent may crash, hang or be killed. SECONDS is 600 by default.
# PROFILE is the build of the drop-in (debug, with checks, by default).
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
seconds="${1-600}"
seed="${2-$RANDOM}"
[[ "$seconds" =~ ^[1-9][0-9]*$ && "$seed" =~ ^[0-9]+$ ]] || die "expected seconds and a seed"
need cc
library="$target/${PROFILE:-debug}/liburing.so"
[[ -f "$library" ]] || die "$library is not there: cargo build -p uringlet-io-uring"
folder="$(mktemp -d)"
trap 'rm -rf -- "$folder"' EXIT
cc -std=gnu11 -O1 -g -pthread -o "$folder/forged" "$root/io-uring/tests/c/forged.c" -luring
processes=()
for ((cpu = 0; cpu < $(nproc); cpu++)); do
    LD_PRELOAD="$library" timeout --kill-after=5 "$((seconds + 60))" \
        "$folder/forged" "$seconds" "$((seed + cpu))" >"$folder/$cpu" 2>&1 &
    processes+=($!)
done
failed=0
for ((cpu = 0; cpu < ${#processes[@]}; cpu++)); do
    status=0
    wait "${processes[$cpu]}" || status=$?
    printf 'seed %d: exit status %d: %s\n' "$((seed + cpu))" "$status" \
        "$(tr '\n' ' ' <"$folder/$cpu")"
    ((status == 0)) && grep -q '^done$' "$folder/$cpu" || failed=1
done
((failed == 0)) || die "a ring's memory had an effect that it must not have"
