#!/usr/bin/env bash
# Builds the contents of the packages, into target/packages/built-ARCH: packaging/build.sh [ARCH]
#
# ARCH is x86_64 or aarch64, this machine's by default. Another architecture needs its rust-std
# (rustup target add) and a C compiler that links for it (gcc-aarch64-linux-gnu).
#
# Everything runs with glibc 2.28 or later. cargo-zigbuild would ensure that, but Zig's linker does
# not know --defsym, with which the libraries' functions get their public names. So the C compiler
# links, against Zig's form of glibc 2.28.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
choose_architecture "${1-}"
cd -- "$root"

# Installs Zig from its Python wheel.
tools="$packages/tools"
if ! "$tools/bin/python" -c 'import ziglang' 2>/dev/null; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet ziglang
fi
compiler=cc
if [[ "$arch" != "$(uname -m)" ]]; then
    compiler="$multiarch-gcc"
    need "$compiler"
fi

# Has Zig make its form of glibc. Its libraries have the symbols of glibc's libraries, but no code.
# Zig also makes the object files that glibc links into programs.
stubs="$packages/glibc-$glibc-$arch"
if [[ ! -e "$stubs/libc.so" ]]; then
    cache="$packages/zig-$arch"
    mkdir -p -- "$stubs" "$cache"
    printf 'int main(void) { return 0; }\n' >"$cache/empty.c"
    ZIG_GLOBAL_CACHE_DIR="$cache" "$tools/bin/python" -m ziglang cc -fPIE -pie \
        -target "$arch-linux-gnu.$glibc" -o "$cache/empty" "$cache/empty.c" \
        -lpthread -ldl -lm -lrt -lutil
    find "$cache" \( -name 'lib*.so.*' -o -name libc_nonshared.a -o -name Scrt1.o \) \
        -exec cp -- {} "$stubs" \;
    [[ -e "$stubs/Scrt1.o" ]] || die "Zig has made no Scrt1.o"
    for name in pthread.so.0 dl.so.2 m.so.6 rt.so.1 util.so.1; do
        ln -sf "lib$name" "$stubs/lib${name%%.*}.so"
    done
    printf 'GROUP ( %s %s )\n' "$stubs/libc.so.6" "$stubs/libc_nonshared.a" >"$stubs/libc.so"
fi
# rustc passes arguments of the kind that the linker's name ends with: `gcc` here.
linker="$stubs/stubs-gcc"
# libgcc_s may use symbols that Zig's glibc lacks: a program loads libgcc_s and glibc from the
# machine that runs it. The Rust toolchain's lld takes two version scripts, rustc's and this
# project's; GNU ld does not.
host="$(rustc -vV | sed -n 's/^host: //p')"
lld="$(rustc --print sysroot)/lib/rustlib/$host/bin/gcc-ld"
printf '#!/bin/sh\nexec %s -B%s -B%s -fuse-ld=lld -L%s -Wl,--allow-shlib-undefined "$@"\n' \
    "$compiler" "$lld" "$stubs" "$stubs" >"$linker"
chmod +x "$linker"

export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols
upper="$(tr 'a-z-' 'A-Z_' <<<"$triple")"
build=(--release --locked --target "$triple" --target-dir "$packages/target")
from="$packages/target/$triple/release"
export "CARGO_TARGET_${upper}_LINKER=$linker"
cargo build "${build[@]}" -p uringlet-libaio -p uringlet-posix-aio -p uringlet-io-uring
cargo rustc "${build[@]}" -p uringlet-capi --crate-type cdylib,staticlib
mkdir -p -- "$built"
for name in libaio.so libposix_aio.so liburing.so liburinglet_capi.so liburinglet_capi.a; do
    install -m 644 "$from/$name" "$built/$name"
done
# The static library keeps its symbols, but no debug information.
objcopy="objcopy"
[[ "$compiler" == cc ]] || objcopy="$multiarch-objcopy"
"$objcopy" --strip-debug "$built/liburinglet_capi.a"

# The command carries the drop-ins that were just built.
URINGLET_DROP_INS="$built" cargo build "${build[@]}" -p uringlet-cli
install -m 755 "$from/uringlet" "$built/uringlet"
"$objcopy" --strip-all "$built/uringlet"

"$root/packaging/check-glibc.sh" "$glibc" "$built/uringlet" "$built"/lib*.so
"$root/packaging/check-sizes.sh" "$built"
