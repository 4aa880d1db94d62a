#!/usr/bin/env bash
# Installs the archive of an architecture, runs its programs, and removes it:
# packaging/answer.sh [ARCH]
#
# The archive is installed into a folder. The command prints its version, and an example prints a
# file through the shared and the static C library. A program of libaio's tests runs on the drop-in.
# For an architecture other than this machine's, QEMU's user mode executes these programs. This mode
# supports neither Linux AIO nor io_uring.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
choose_architecture "${1-}"
name="uringlet-$version-$arch-linux-gnu"
[[ -f "$packages/$name.tar.gz" ]] || die "$name.tar.gz is not there: packaging/tarball.sh $arch"
compiler=cc
[[ "$arch" == "$(uname -m)" ]] || compiler="$multiarch-gcc"
need "$compiler"
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
tar xzf "$packages/$name.tar.gz" -C "$work"
mkdir -- "$work/to"
"$work/$name/install.sh" "$work/to"

said="$(emulated "$work/to/bin/uringlet" --version)"
[[ "${said%% (*}" == "uringlet $version" ]] || die "the command says $said, not $version"
printf '%s, command: answers\n' "$arch"

read -ra flags < <(PKG_CONFIG_PATH="$work/to/lib/pkgconfig" pkg-config --cflags --libs uringlet)
example="$root/capi/examples/cat.c"
"$compiler" -o "$work/shared" "$example" "${flags[@]}" "-Wl,-rpath,$work/to/lib"
read -ra flags < <(PKG_CONFIG_PATH="$work/to/lib/pkgconfig" \
    pkg-config --static --cflags --libs uringlet | sed 's/-luringlet/-l:liburinglet.a/')
"$compiler" -o "$work/static" "$example" "${flags[@]}"
for form in shared static; do
    emulated "$work/$form" "$root/README.md" | cmp - "$root/README.md"
    printf '%s, C library, %s: answers\n' "$arch" "$form"
done

library="$work/to/lib/uringlet/libaio.so"
"$compiler" -o "$work/aio" "$root/libaio/tests/c/read_write.c" "$library"
# The program fails if it finds libaio's functions in another file.
export LIBAIO_EXPECTED="$library"
variable=LD_PRELOAD
[[ "$arch" == "$(uname -m)" ]] || variable="QEMU_SET_ENV=$variable"
(export "$variable=$library" && emulated "$work/aio") >"$work/answers"
grep -q '^buffered, equal bytes: yes$' "$work/answers" || die "libaio: no equal bytes"
! grep ': no$' "$work/answers" || die "libaio: wrong answers"
printf '%s, libaio: answers\n' "$arch"

"$work/$name/uninstall.sh" "$work/to"
left="$(find "$work/to" -mindepth 1)"
[[ -z "$left" ]] || die "left after the removal: $left"
