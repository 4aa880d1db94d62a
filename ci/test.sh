#!/usr/bin/env bash
# Builds the workspace and runs all its tests: ci/test.sh [ARGUMENTS OF cargo test]
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
"$root/ci/setup.sh"
cd -- "$root"
cargo build --workspace
# A command that carries the drop-ins, as a release build does: tests copy it and run it alone.
carried="$target/debug/drop-ins"
mkdir -p -- "$carried"
for name in libaio.so libposix_aio.so liburing.so; do
    strip -o "$carried/$name.new" -- "$target/debug/$name"
    # One that is the same stays, so that the command is not built again.
    cmp -s -- "$carried/$name.new" "$carried/$name" || mv -- "$carried/$name.new" "$carried/$name"
    rm -f -- "$carried/$name.new"
done
export URINGLET_DROP_INS="$carried"
# With the engine that makes faults, which nothing but tests should have.
cargo test --workspace --features uringlet/faulty --no-fail-fast "$@"
# Awaited files have traits of other crates, which are features.
cargo test -p uringlet --features faulty,tokio,futures-io,stream,bytes --test fs "$@"
