#!/usr/bin/env bash
# Runs the engine's stress test under ThreadSanitizer: ci/tsan.sh [ARGUMENTS OF cargo test]
#
# Without arguments: -p uringlet --test conformance stress::. Needs rustup; adds rust-src to the
# nightly toolchain.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
tests=("$@")
((${#tests[@]})) || tests=(-p uringlet --test conformance stress::)
command -v rustup >/dev/null || die "rustup is missing"
rustup component add --toolchain nightly rust-src
cd -- "$root"
host="$(rustc +nightly -vV | sed -n 's/^host: //p')"
# The standard library is built along: its own synchronisation has to be seen as such.
export RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=thread"
export TSAN_OPTIONS="${TSAN_OPTIONS:-second_deadlock_stack=1 history_size=4}"
export CARGO_TARGET_DIR="$target/tsan"
cargo +nightly test --release -Zbuild-std --target "$host" "${tests[@]}"
