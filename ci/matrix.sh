#!/usr/bin/env bash
# Runs fio with verification under `uringlet run`, with all drop-ins loaded, for every interface on
# every engine in every sandbox: ci/matrix.sh [ARGUMENTS OF the test]
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
cd -- "$root"
cargo build --workspace
export URINGLET_TEST_MATRIX=full
cargo test -p uringlet-cli --test matrix -- --nocapture "$@"
