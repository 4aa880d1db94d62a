#!/usr/bin/env bash
# Checks what a publication of the crates needs: ci/crates.sh [--baseline COMMIT]
#
# Packs every crate as cargo would publish it, and builds it, without publishing. Checks licences
# and sources (cargo-deny), and the oldest Rust version that the crates promise. With --baseline,
# compares the Rust API (cargo-semver-checks) and the C library's symbols (abidiff) with those of
# COMMIT. Missing tools of cargo are installed. A step that cannot run here prints SKIPPED and the
# reason.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
baseline=
if (($#)); then
    [[ "$1" == --baseline && $# == 2 ]] || die "expected --baseline COMMIT (--help)"
    baseline="$2"
fi
cd -- "$root"
failed=0
passed=0
skipped=0

check() {
    local name="$1"
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        printf 'FAILED %s\n' "$name" >&2
        failed=$((failed + 1))
    fi
}
skip() {
    printf 'SKIPPED %s: %s\n' "$1" "$2" >&2
    skipped=$((skipped + 1))
}
# Succeeds if cargo has this subcommand, which it builds if it is missing.
has() {
    command -v "cargo-$1" >/dev/null || cargo install --locked "cargo-$1"
}

# All packages are packed at once, so that each package finds its unpublished dependencies among the
# packages before it. A package is built in the debug profile, in which the command carries no
# drop-ins.
check "packages" cargo publish --workspace --dry-run --allow-dirty --locked

msrv="$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)"
# The toolchain may be installed under a longer name: 1.93.0 for 1.93.
oldest="$(rustup toolchain list 2>/dev/null | grep -oE "^$msrv(\.[0-9]+)?" | head -n 1 || true)"
if [[ -n "$oldest" ]] ||
    rustup toolchain install "$msrv" --profile minimal --no-self-update; then
    check "Rust $msrv" env URINGLET_DROP_INS=none RUSTUP_TOOLCHAIN="${oldest:-$msrv}" \
        cargo check --workspace --locked --target-dir "$target/msrv"
else
    skip "Rust $msrv" "the toolchain cannot be fetched"
fi

if has deny; then
    check "licences, bans, sources" cargo deny --all-features check licenses bans sources
    if [[ -d "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs" ]]; then
        check "advisories" cargo deny check --disable-fetch advisories
    else
        skip "advisories" "there is no copy of the advisory database"
    fi
else
    skip "licences, bans, sources" "cargo-deny cannot be installed"
fi

if [[ -z "$baseline" ]]; then
    skip "Rust API" "no --baseline COMMIT, and nothing is published yet"
    skip "C ABI" "no --baseline COMMIT, and nothing is published yet"
else
    if has semver-checks; then
        check "Rust API" cargo semver-checks -p uringlet --baseline-rev "$baseline"
    else
        skip "Rust API" "cargo-semver-checks cannot be installed"
    fi
    if command -v abidiff >/dev/null; then
        check "C ABI" ci/abi.sh "$baseline"
    else
        skip "C ABI" "abidiff is missing: install abigail-tools"
    fi
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
