#!/usr/bin/env bash
# Times system calls with and without a filled return stack: ci/return-stack.sh [FOLDER]
#
# Prints nanoseconds for each system call (ci/return-stack.c), what the kernel says about its
# returns, and whether the library fills the return stack here. FOLDER is for a file of 10 MiB; by
# default a temporary one. ROUNDS (9) is the number of rounds. Needs x86-64.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
[[ "$(uname -m)" == x86_64 ]] || die "expected x86-64, whose return stack is filled"
scratch="$(mktemp -d "${1:-${TMPDIR:-/tmp}}/return-stack.XXXXXX")"
trap 'rm -rf -- "$scratch"' EXIT
cc -O2 -Wall -Wextra -Werror -o "$scratch/return-stack" "$root/ci/return-stack.c"
head -c 10485760 /dev/zero >"$scratch/data"
"$scratch/return-stack" "$scratch/data" "${ROUNDS:-9}"
cd -- "$root"
cargo build --release --quiet -p uringlet-cli
printf 'the kernel: %s\n' \
    "$(cat /sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow 2>&1)"
"$target/release/uringlet" doctor "$scratch" | grep '^  CPU ' ||
    echo "the library leaves the return stack alone"
