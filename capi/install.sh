#!/usr/bin/env bash
# Installs the C library with its header and manual: capi/install.sh [OPTIONS] PREFIX [DESTDIR]
#
# PREFIX is where it will be used (/usr, /usr/local), an absolute path; DESTDIR goes before that,
# for packages.
#
#   --from FOLDER  where cargo has put the libraries; target/release by default
#   --libdir NAME  the folder for libraries below PREFIX (lib64, lib/x86_64-linux-gnu); lib by
#                  default
#
# For another architecture, OBJCOPY and NM name the programs to use (aarch64-linux-gnu-objcopy).
#
# Build first: cargo rustc --release -p uringlet-capi --crate-type cdylib,staticlib
set -euo pipefail
build="cargo rustc --release -p uringlet-capi --crate-type cdylib,staticlib"
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
target="${CARGO_TARGET_DIR:-$here/../target}"
from="$target/release"
libdir=lib

usage() {
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
}
die() {
    printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
    exit 2
}

places=()
while (($#)); do
    case "$1" in
    -h | --help)
        usage
        exit 0
        ;;
    --from | --libdir)
        (($# > 1)) || die "$1 needs a value"
        if [[ "$1" == --from ]]; then from="$2"; else libdir="$2"; fi
        shift
        ;;
    -*) die "unknown option $1 (--help)" ;;
    *) places+=("$1") ;;
    esac
    shift
done
((${#places[@]} == 1 || ${#places[@]} == 2)) || die "expected PREFIX [DESTDIR] (--help)"
prefix="${places[0]}"
[[ "$prefix" == /* ]] || die "$prefix is not an absolute path"
root="${places[1]-}$prefix"
objcopy="${OBJCOPY:-objcopy}" nm="${NM:-nm}"
for tool in "$objcopy" "$nm"; do
    command -v "$tool" >/dev/null || die "$tool is missing: install binutils"
done
for name in liburinglet_capi.so liburinglet_capi.a; do
    [[ -f "$from/$name" ]] || die "$from/$name is not there: $build"
done

version="$(awk '
    /^#define [A-Z]+_VERSION_(MAJOR|MINOR|PATCH)/ { printf "%s%s", dot, $3; dot = "." }
    ' "$here/include/uringlet.h")"
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT

# In the shared library, the linker has made the names without a leading underscore. The static
# library gets the same names here.
sed -n 's/^ *\(uringlet_[a-z0-9_]*\);$/_\1 \1/p' "$here/uringlet.map" >"$work/names"
"$objcopy" --redefine-syms="$work/names" "$from/liburinglet_capi.a" "$work/liburinglet.a"
# If cargo builds a Rust library in the same call, the static library of a release lacks the
# functions.
"$nm" --defined-only --extern-only --quiet "$work/liburinglet.a" >"$work/symbols"
grep -q ' uringlet_create$' "$work/symbols" || die "$from/liburinglet_capi.a is empty: $build"
install -d "$root/$libdir/pkgconfig" "$root/include" "$root/share/man/man3" "$root/share/man/man7"
install -m 755 "$from/liburinglet_capi.so" "$root/$libdir/liburinglet.so.$version"
ln -sf "liburinglet.so.$version" "$root/$libdir/liburinglet.so.0"
ln -sf liburinglet.so.0 "$root/$libdir/liburinglet.so"

install -m 644 "$work/liburinglet.a" "$root/$libdir/liburinglet.a"

install -m 644 "$here/include/uringlet.h" "$root/include/uringlet.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" \
    "$here/uringlet.pc.in" >"$work/uringlet.pc"
install -m 644 "$work/uringlet.pc" "$root/$libdir/pkgconfig/uringlet.pc"

install -m 644 "$here/man/uringlet.7" "$root/share/man/man7/uringlet.7"
for page in "$here"/man/*.3; do
    name="$(basename -- "$page")"
    install -m 644 "$page" "$root/share/man/man3/$name"
    # A page for several functions is found under each of their names.
    names="$(awk '
        /^\.SH NAME/ { getline; sub(/ *\\-.*/, ""); gsub(/,/, ""); print; exit }' "$page")"
    for other in $names; do
        if [[ "$other.3" != "$name" ]]; then
            printf '.so man3/%s\n' "$name" >"$root/share/man/man3/$other.3"
        fi
    done
done
