#!/usr/bin/env bash
# Runs the conformance suite for every engine in every sandbox: ci/conformance.sh
#
# ci/test.sh runs the suite for a part of these pairs. This command runs it for one engine without
# a sandbox: URINGLET_TEST_ENGINE=io_uring cargo test -p uringlet --test conformance
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
cd -- "$root"
export URINGLET_TEST_MATRIX=full
cargo test -p uringlet --features faulty --test conformance -- --nocapture matrix:: "$@"
