#!/usr/bin/env bash
# Packs the Debian packages of an architecture, and checks them with lintian: packaging/deb.sh
# [ARCH]
#
# The packages are uringlet (the command and the drop-ins), liburinglet0 and liburinglet-dev.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
choose_architecture "${1-}"
need_built
need dpkg-deb
need lintian
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
maintainer="uringlet maintainers <maintainers@uringlet.invalid>"
date="$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
year="$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)"
libc="libc6 (>= $glibc)"
# The contents of a package are below $work/PACKAGE.
stage "$work/uringlet/usr"
stage_c /usr "$work/c" "lib/$multiarch"
library="$work/liburinglet0/usr/lib/$multiarch"
install -d "$library"
mv -- "$work/c/usr/lib/$multiarch"/liburinglet.so.0* "$library/"
chmod 644 "$library/liburinglet.so.$version"
mkdir -p -- "$work/liburinglet-dev"
mv -- "$work/c/usr" "$work/liburinglet-dev/usr"

# Prints the packages that the loader needs beside the C library: needs FILE...
needs() {
    readelf -d -- "$@" | grep -q 'NEEDED.*libgcc_s' && printf ', libgcc-s1 (>= 3.3)'
    return 0
}

# Packs a package, with the lines of its description from standard input:
# pack PACKAGE SECTION DEPENDS SUMMARY
pack() {
    local package="$1" section="$2" depends="$3" summary="$4"
    local folder="$work/$package" docs size
    docs="$folder/usr/share/doc/$package"
    install -d "$docs" "$folder/DEBIAN"
    cat >"$docs/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: uringlet

Files: *
$(sed -n "s/^Copyright (c) /Copyright: $year /p" "$root/LICENSE-MIT")
License: Apache-2.0 or MIT
Comment: What the binaries are linked with is in THIRD-PARTY-LICENSES.gz.

License: Apache-2.0
 On Debian systems, the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.

License: MIT
$(sed -e 's/^$/./' -e 's/^/ /' "$root/LICENSE-MIT")
END
    printf 'uringlet (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$date" | gzip -9n >"$docs/changelog.gz"
    [[ ! -f "$docs/CHANGELOG.md" ]] || gzip -9n "$docs/CHANGELOG.md"
    third_party "$docs"
    gzip -9nf "$docs/THIRD-PARTY-LICENSES"
    find "$folder/usr/share/man" -type f -exec gzip -9n {} + 2>/dev/null || true
    find "$folder" -type d -exec chmod 755 {} +
    (cd -- "$folder" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) \
        >"$folder/DEBIAN/md5sums"
    size="$(du -k -s --apparent-size -- "$folder/usr" | cut -f 1)"
    {
        printf 'Package: %s\nSource: uringlet\nVersion: %s\nArchitecture: %s\n' \
            "$package" "$version" "$deb_arch"
        printf 'Maintainer: %s\nInstalled-Size: %s\nDepends: %s\n' "$maintainer" "$size" "$depends"
        [[ "$package" == uringlet ]] || printf 'Multi-Arch: same\n'
        printf 'Section: %s\nPriority: optional\nDescription: %s\n' "$section" "$summary"
        sed -e 's/^$/./' -e 's/^/ /'
    } >"$folder/DEBIAN/control"
    find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$folder" \
        "$packages/${package}_${version}_$deb_arch.deb"
}

install -d "$work/liburinglet0/DEBIAN"
printf 'liburinglet 0 liburinglet0 (>= %s)\n' "$version" >"$work/liburinglet0/DEBIAN/shlibs"
{
    printf 'liburinglet.so.0 liburinglet0 #MINVER#\n'
    printf ' URINGLET_0.1@URINGLET_0.1 0.1.0\n'
    sed -n 's/^ *\(uringlet_[a-z0-9_]*\);$/ \1@URINGLET_0.1 0.1.0/p' "$root/capi/uringlet.map" |
        LC_ALL=C sort
} >"$work/liburinglet0/DEBIAN/symbols"
printf 'activate-noawait ldconfig\n' >"$work/liburinglet0/DEBIAN/triggers"

pack uringlet utils "$libc$(needs "$built/uringlet" "$built/libaio.so")" \
    "asynchronous file I/O for Linux in user space" <<'END'
Runs programs that were written for libaio or POSIX AIO on uringlet, unchanged:
submitting never blocks, and a cached read costs one system call. Works where
io_uring is refused.

The package has the command and the libraries that it preloads. They are not in
the loader's path: no program uses them unless it is started so.
END
pack liburinglet0 libs "$libc$(needs "$built/liburinglet_capi.so")" \
    "asynchronous file I/O for Linux in user space (library)" <<'END'
Executes requests on files asynchronously, for programs written in C. Requests
and completions have the layout of io_uring's.
END
pack liburinglet-dev libdevel "liburinglet0 (= $version)" \
    "asynchronous file I/O for Linux in user space (development)" <<'END'
Executes requests on files asynchronously, for programs written in C.

The package has the header, the static library, the pkg-config file and the
manual.
END
lintian --fail-on error,warning --tag-display-limit 0 \
    --suppress-tags bad-distribution-in-changes-file "$packages"/*_"${version}_$deb_arch".deb
