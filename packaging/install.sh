#!/bin/sh
# Installs or removes what this archive holds: ./install.sh [--uninstall] [PREFIX]
#
# PREFIX is /usr/local by default. Every file that is installed is listed in the archive's MANIFEST,
# and is removed by --uninstall; folders that are empty then go, too.
set -eu
here="$(cd -- "$(dirname -- "$0")" && pwd)"
action=install
prefix=
for argument in "$@"; do
    case "$argument" in
    -h | --help)
        sed -n '2,5s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    --uninstall) action=uninstall ;;
    /*) prefix="$argument" ;;
    *)
        echo "install.sh: expected --uninstall or an absolute path, not $argument" >&2
        exit 2
        ;;
    esac
done
prefix="${prefix:-/usr/local}"
case "$prefix" in
*[\ :]*)
    echo "install.sh: the dynamic loader preloads from no path with a space or a colon" >&2
    exit 2
    ;;
esac
if [ "$action" = install ]; then
    (cd -- "$here" && sha256sum --quiet -c SHA256SUMS)
    while read -r name; do
        mkdir -p -- "$prefix/$(dirname -- "$name")"
        # -P: links stay links. The old file goes first: programs may have it mapped.
        rm -f -- "$prefix/$name"
        cp -P -- "$here/root/$name" "$prefix/$name"
    done <"$here/MANIFEST"
    # The place of the C library is in its pkg-config file.
    if [ -f "$prefix/lib/pkgconfig/uringlet.pc" ]; then
        sed "s|^prefix=.*|prefix=$prefix|" "$here/root/lib/pkgconfig/uringlet.pc" \
            >"$prefix/lib/pkgconfig/uringlet.pc"
    fi
else
    while read -r name; do
        rm -f -- "$prefix/$name"
    done <"$here/MANIFEST"
    # The deepest first; those that hold something else stay.
    sed 's|/[^/]*$||' "$here/MANIFEST" | sort -u | while read -r folder; do
        while [ "$folder" != . ]; do
            echo "$folder"
            folder="$(dirname -- "$folder")"
        done
    done | sort -ur | while read -r folder; do
        case "$folder" in
        # Those that every system has below a prefix.
        bin | lib | include | share | share/man | share/man/man[137] | share/doc) ;;
        *) rmdir -- "$prefix/$folder" 2>/dev/null || : ;;
        esac
    done
fi
# The loader's list of libraries, where root may write it.
if [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
    ldconfig
fi
