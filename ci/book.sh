#!/usr/bin/env bash
# Builds the book from docs/ with mdBook: ci/book.sh [FOLDER | --commands]
#
# With --commands, this script builds no book, but runs every command of the pages. The test
# (cli/tests/commands_of_the_book.rs) names the commands that are left out, with the reasons. The
# test also skips commands that cannot run on this machine.
#
# The book goes to FOLDER (target/book); its first page is docs/index.html there. The other
# documents of the repository become chapters after docs/. Source files are copied to the places
# that links name. If mdBook is missing, cargo builds it into target/mdbook, which takes minutes.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
(($# <= 1)) || die "one folder at most (--help)"
if [[ "${1-}" == --commands ]]; then
    "$root/ci/setup.sh"
    cd -- "$root"
    # Builds the same as ci/test.sh does, so that nothing is built twice.
    of_all=(--workspace --features uringlet/faulty)
    cargo build "${of_all[@]}" --lib
    exec cargo test "${of_all[@]}" --test commands_of_the_book -- --ignored --nocapture
fi
[[ "${1-}" != -* ]] || die "unknown argument $1 (--help)"
folder="$(realpath -m -- "${1:-$target/book}")"
cd -- "$root"

mdbook="$(command -v mdbook || true)"
if [[ -z "$mdbook" ]]; then
    mdbook="$target/mdbook/bin/mdbook"
    [[ -x "$mdbook" ]] || cargo install mdbook --locked --root "$target/mdbook"
fi

scratch="$(mktemp -d)"
trap 'rm -rf -- "$scratch"' EXIT
stage="$scratch/stage"
mkdir -- "$stage"
git ls-files -z | xargs -0 cp --parents -t "$stage" --
mv -- "$stage/docs/book.toml" "$stage/book.toml"
# mdBook makes index.html of each README.md, but does not change the links.
find "$stage" -name '*.md' ! -name SUMMARY.md \
    -exec sed -Ei 's|\]\(([^)]*)README\.md|](\1index.md|g' {} +
{
    # Links of the summary are relative to its folder.
    sed 's|](|](docs/|' "$stage/docs/SUMMARY.md"
    printf '\n# The documents of the repository\n\n'
    git ls-files -- '*.md' ':!docs' | while read -r page; do
        printf -- '- [%s](%s)\n' "$(sed -n 's/^# //p; T; q' "$page")" "$page"
    done
} >"$stage/SUMMARY.md"
rm -- "$stage/docs/SUMMARY.md"
"$mdbook" build --dest-dir "$folder" -- "$stage" 2>&1 | tee "$scratch/log"
! grep -Eq 'WARN|ERROR' "$scratch/log" || die "mdBook is not content"
printf 'the book: %s\n' "$folder/docs/index.html"
