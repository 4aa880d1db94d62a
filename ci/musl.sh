#!/usr/bin/env bash
# Runs the conformance suite and the tests of awaited files as static programs on musl: ci/musl.sh
#
# The engines are auto and workers. Needs rustup's target for musl, which it installs, and cc for
# the C files of crates that the tests use.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
cd -- "$root"
triple="$(uname -m)-unknown-linux-musl"
rustup target add "$triple"
export "CC_${triple//-/_}=${CC:-cc}"
suite() {
    cargo test -p uringlet --target "$triple" "$@"
}
for engine in auto workers; do
    URINGLET_TEST_ENGINE="$engine" \
        suite --features faulty --test conformance -- --skip matrix::
done
suite --features faulty,tokio,futures-io,stream,bytes --test fs
