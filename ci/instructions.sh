#!/usr/bin/env bash
# Counts the instructions per request, and the locked ones among them: ci/instructions.sh
# [COLUMN...]
#
# Requests are cached reads of 4 KiB, or buffered writes of 1 KiB. Each is submitted by a call of
# its own, with 1, 8 or 32 in flight. Columns: plain libaio posix-aio liburing context (by default
# all). `plain` makes plain system calls; the others are release builds of the drop-ins and of
# `Context`. A figure counts the instructions of the program's thread outside of the kernel, with
# the program's own loop. No worker executes requests. ci/steps.c runs the program one instruction
# at a time (ptrace(2)). The time stamp counter that the program reads counts these instructions.
# So figures of a build do not depend on what else runs. Needs x86-64.
#
# DEPTHS (1 8 32) and COUNT (128 requests) change the size of the measurement.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
[[ "$(uname -m)" == x86_64 ]] || die "expected x86-64, whose locked instructions are known here"
columns=("$@")
((${#columns[@]})) || columns=(plain libaio posix-aio liburing context)
# The program first makes `uncounted` requests, because the engine has to learn about a file.
depths="${DEPTHS:-1 8 32}" count="${COUNT:-128}" uncounted=400
scratch="$(mktemp -d)"
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$root"

# Compiles the program of a column: compile COLUMN INTERFACE LIBRARY
compile() {
    cc -O2 -D"FACE_$2" -o "$scratch/$1" ci/instructions.c -l"$3"
}

packages=()
declare -A preload=()
for column in "${columns[@]}"; do
    case "$column" in
    plain) compile plain PLAIN c ;;
    libaio)
        packages+=(-p uringlet-libaio)
        compile libaio LIBAIO aio
        preload[libaio]="$target/release/libaio.so"
        ;;
    posix-aio)
        packages+=(-p uringlet-posix-aio)
        compile posix-aio POSIX_AIO rt
        preload[posix-aio]="$target/release/libposix_aio.so"
        ;;
    liburing)
        packages+=(-p uringlet-io-uring)
        compile liburing LIBURING uring
        preload[liburing]="$target/release/liburing.so"
        ;;
    context)
        packages+=(-p uringlet-lab --example one_in_a_call)
        ln -sf -- "$target/release/examples/one_in_a_call" "$scratch/context"
        ;;
    *) die "unknown column $column (--help)" ;;
    esac
done
((${#packages[@]} == 0)) || cargo build --release --quiet --lib "${packages[@]}"
cc -O2 -o "$scratch/steps" ci/steps.c
head -c 1048576 /dev/zero >"$scratch/data"

printf '%-6s %-6s' "" depth
printf ' %16s' "${columns[@]}"
printf '\n'
for what in read write; do
    for depth in $depths; do
        printf '%-6s %-6s' "$what" "$depth"
        for column in "${columns[@]}"; do
            STEPS_PRELOAD="${preload[$column]-}" URINGLET_SPARE_CPUS=0 "$scratch/steps" \
                "$scratch/$column" "$scratch/data" "$what" "$depth" "$uncounted" "$count" \
                >"$scratch/out" || die "$column cannot be counted"
            awk -v requests="$count" '{
                printf " %16s", sprintf("%.0f (%.1f)", $1 / requests, $2 / requests)
            }' "$scratch/out"
        done
        printf '\n'
    done
done
