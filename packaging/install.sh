#!/bin/sh
# Installs or removes the contents of this archive: ./install.sh [--uninstall] [PREFIX]
#
# PREFIX is /usr/local by default. Every file that is installed is listed in the archive's MANIFEST,
# and is removed by --uninstall; so are the folders that were made for them, if they are empty.
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
# The file that lists the folders that this script made.
made=share/doc/uringlet/folders
# Prints the folders of the files in MANIFEST, the deepest first.
folders() {
    while read -r name; do
        name="$(dirname -- "$name")"
        while [ "$name" != . ]; do
            echo "$name"
            name="$(dirname -- "$name")"
        done
    done <"$here/MANIFEST" | sort -ur
}
if [ "$action" = install ]; then
    (cd -- "$here" && sha256sum --quiet -c SHA256SUMS)
    new="$(folders | while read -r folder; do
        [ -d "$prefix/$folder" ] || echo "$folder"
    done)"
    while read -r name; do
        mkdir -p -- "$prefix/$(dirname -- "$name")"
        # -P: links stay links. The old file is removed first, because programs may have it mapped.
        rm -f -- "$prefix/$name"
        cp -P -- "$here/root/$name" "$prefix/$name"
    done <"$here/MANIFEST"
    # Appends, because the list of an earlier installation is still needed.
    [ -z "$new" ] || echo "$new" >>"$prefix/$made"
    # The pkg-config file has to name the folder in which the C library is.
    if [ -f "$prefix/lib/pkgconfig/uringlet.pc" ]; then
        sed "s|^prefix=.*|prefix=$prefix|" "$here/root/lib/pkgconfig/uringlet.pc" \
            >"$prefix/lib/pkgconfig/uringlet.pc"
    fi
else
    while read -r name; do
        rm -f -- "$prefix/$name"
    done <"$here/MANIFEST"
    if [ -f "$prefix/$made" ]; then
        new="$(sort -ur "$prefix/$made")"
        rm -f -- "$prefix/$made"
        echo "$new" | while read -r folder; do
            rmdir -- "$prefix/$folder" 2>/dev/null || :
        done
    fi
fi
# Updates the loader's list of libraries, which only root can change.
if [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then
    ldconfig
fi
