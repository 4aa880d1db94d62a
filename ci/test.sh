#!/usr/bin/env bash
# Builds the workspace and runs all its tests: ci/test.sh [ARGUMENTS OF cargo test]
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
"$root/ci/setup.sh"
cd -- "$root"
cargo build --workspace
# With the engine that makes faults, which nothing but tests should have.
cargo test --workspace --features uringlet/faulty --no-fail-fast "$@"
