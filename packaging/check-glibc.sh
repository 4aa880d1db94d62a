#!/usr/bin/env bash
# Fails if a file needs a later glibc: packaging/check-glibc.sh VERSION FILE...
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../ci/common.sh"
help_if_asked "$@"
(($# > 1)) || die "expected VERSION FILE... (--help)"
need readelf
most="$1"
shift
status=0
for file in "$@"; do
    # Lists the versions of glibc's symbols that the file needs and does not define.
    symbols="$(readelf --dyn-syms --wide -- "$file")" || die "$file: no ELF file"
    names="$(grep ' UND ' <<<"$symbols" | grep -o 'GLIBC_[0-9.]*' | sort -uV)" || true
    [[ -n "$names" ]] || die "$file: needs no glibc at all"
    newest="${names##*GLIBC_}"
    if [[ "$(printf '%s\n' "$newest" "$most" | sort -V | tail -n 1)" == "$most" ]]; then
        printf '%s: needs glibc %s\n' "$file" "$newest"
    else
        status=1
        printf '%s: NEEDS glibc %s, later than %s:\n' "$file" "$newest" "$most" >&2
        grep ' UND ' <<<"$symbols" | grep -o '[^ ]*@GLIBC_[0-9.]*' |
            sort -u -t@ -k2V | tail -n 5 >&2
    fi
done
exit "$status"
