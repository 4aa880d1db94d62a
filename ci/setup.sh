#!/usr/bin/env bash
# Installs everything that tests and measurements need beside the Rust toolchain: ci/setup.sh
# [--mariadb | --packages [aarch64]]
#
# --mariadb adds what ci/mariadb.sh needs. --packages adds what packaging/all.sh, ci/packages.sh and
# ci/abi.sh need, and with aarch64 also what packages for AArch64 need. Installs with apt-get on
# Debian and its derivatives, and is quick if nothing is missing. On other systems it prints what is
# missing.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
PATH="$PATH:/usr/sbin:/sbin"
mariadb=0
packages_too=0
case "${1-}" in
'') ;;
--mariadb) mariadb=1 ;;
--packages)
    packages_too=1
    other="${2-}" cross=arm64
    [[ "$other" =~ ^(aarch64)?$ ]] || die "unknown architecture $other (--help)"
    ;;
*) die "unknown argument $1 (--help)" ;;
esac

has_header() {
    printf '#include <%s>\n' "$1" | cc -E -x c - >/dev/null 2>&1
}

# Prints the missing packages.
missing() {
    command -v cc >/dev/null || echo gcc
    # The header of the C interface has to compile as C and as C++, with GCC and with Clang.
    command -v g++ >/dev/null || echo g++
    command -v clang++ >/dev/null || echo clang
    command -v pkg-config >/dev/null || echo pkgconf
    command -v mandoc >/dev/null || echo mandoc
    has_header stdio.h || echo libc6-dev
    # These packages also install the libraries, whose packages have different names.
    has_header libaio.h || echo libaio-dev
    has_header liburing.h || echo liburing-dev
    command -v objdump >/dev/null && command -v readelf >/dev/null || echo binutils
    command -v fio >/dev/null || echo fio
    command -v qemu-img >/dev/null && command -v qemu-io >/dev/null || echo qemu-utils
    command -v stress-ng >/dev/null || echo stress-ng
    command -v ioping >/dev/null || echo ioping
    command -v strace >/dev/null || echo strace
    command -v tmux >/dev/null || echo tmux
    command -v mkfs.xfs >/dev/null || echo xfsprogs
    command -v groff >/dev/null || echo groff-base
    command -v mkfs.ext4 >/dev/null || echo e2fsprogs
    command -v make >/dev/null || echo make
    # Tests render the pages that bench and reproduce write, for which Chromium needs a font.
    command -v chromium >/dev/null || echo chromium
    [[ -d /usr/share/fonts/truetype/dejavu ]] || echo fonts-dejavu-core
    if ((mariadb)); then
        # The packages without -core would start a server.
        command -v mariadbd >/dev/null || echo mariadb-server-core
        command -v mariadb >/dev/null || echo mariadb-client-core
    fi
    if ((packages_too)); then
        command -v lintian >/dev/null || echo lintian
        command -v rpmbuild >/dev/null || echo rpm
        command -v debootstrap >/dev/null || echo debootstrap
        command -v abidiff >/dev/null || echo abigail-tools
        # packaging/build.sh makes a virtual environment.
        python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
        if [[ -n "$other" && "$other" != "$(uname -m)" ]]; then
            command -v "$other-linux-gnu-gcc" >/dev/null || echo "gcc-$other-linux-gnu"
            # The C library of the other architecture, which the compiler's package only recommends.
            [[ -e "/usr/$other-linux-gnu/lib/crti.o" ]] || echo "libc6-dev-$cross-cross"
            command -v "qemu-$other" >/dev/null || echo qemu-user
        fi
    fi
}

mapfile -t packages < <(missing)
if ((${#packages[@]} == 0)); then
    exit 0
fi
echo "installing: ${packages[*]}"
command -v apt-get >/dev/null ||
    die "no apt-get here; install what these Debian packages hold: ${packages[*]}"
as_root=()
if ((EUID != 0)); then
    command -v sudo >/dev/null ||
        die "neither root nor sudo; run as root: apt-get install ${packages[*]}"
    as_root=(sudo)
fi
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
    apt-get install -y --no-install-recommends)
# The lists may be older than the server's packages.
"${install[@]}" "${packages[@]}" || {
    "${as_root[@]}" apt-get update
    "${install[@]}" "${packages[@]}"
}
mapfile -t packages < <(missing)
((${#packages[@]} == 0)) || die "still missing after the installation: ${packages[*]}"
