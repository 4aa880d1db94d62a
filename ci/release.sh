#!/usr/bin/env bash
# Makes all steps of a release but the release itself: ci/release.sh [--quick]
#
# Checks that the tree is clean, and that versions and change log agree. Runs the tests, checks the
# crates, and builds and tests the packages. Then it prints the commands of the release, without
# running them. --quick leaves out the tests.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../packaging/common.sh"
help_if_asked "$@"
quick=0
case "${1-}" in
'') ;;
--quick) quick=1 ;;
*) die "unknown argument $1 (--help)" ;;
esac
cd -- "$root"
[[ -z "$(git status --porcelain)" ]] || die "the tree has changes that are not committed"
header="$(awk '/^#define [A-Z]+_VERSION_(MAJOR|MINOR|PATCH)/
    { printf "%s%s", dot, $3; dot = "." }' \
    capi/include/uringlet.h)"
[[ "$header" == "$version" ]] || die "uringlet.h is of version $header, the crates of $version"
grep -q "^## $version" CHANGELOG.md || die "CHANGELOG.md has no headline for $version"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || die "v$version is tagged already"
((quick)) || .ci/run
ci/crates.sh
packaging/all.sh
if ((quick)); then
    ci/python.sh --only-wheel
else
    ci/python.sh
fi
ci/packages.sh
grep -q "^## $version.*unreleased" CHANGELOG.md &&
    printf '\nFirst: the headline of %s in CHANGELOG.md gets its date.\n' "$version"
printf '\nNothing was released. To release %s:\n' "$version"
printf '  git tag -s v%s\n  git push origin v%s\n  cargo publish --workspace --locked\n' \
    "$version" "$version"
printf '  upload what target/packages and target/python/wheels hold\n'
