#!/usr/bin/env bash
# Runs tests on AArch64, in a machine of two CPUs that QEMU emulates: ci/aarch64.sh [ENGINE...]
#
# Runs the unit tests of the library and of the drop-ins, the tests of uringlet::fs, and the
# conformance suite on each ENGINE. ENGINE is auto, workers, io_uring and linux_aio by default. The
# guest has Debian's kernel for AArch64 and ext4 on an emulated NVMe disk. QEMU's user mode is not
# enough: it has no preadv2(2), io_setup(2) or io_uring_setup(2).
#
# Needs Debian's packages qemu-system-arm, e2fsprogs and gcc-aarch64-linux-gnu, and the rust-std of
# aarch64-unknown-linux-gnu (rustup target add). Downloads Debian's kernel and busybox without
# installing them. If something is missing, the script names it and skips the tests. Takes about
# half an hour; .ci/run does not run this script.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
cd -- "$root"
engines=("$@")
((${#engines[@]})) || engines=(auto workers io_uring linux_aio)

skip() {
    printf 'SKIPPED aarch64: %s\n' "$*"
    exit 0
}

PATH="$PATH:/usr/sbin:/sbin"
triple=aarch64-unknown-linux-gnu
compiler=aarch64-linux-gnu-gcc
for command in qemu-system-aarch64 mkfs.ext4 "$compiler" dpkg-deb apt-get apt-cache; do
    command -v "$command" >/dev/null || skip "$command is missing (Debian: apt-get install \
qemu-system-arm e2fsprogs gcc-aarch64-linux-gnu)"
done
sysroot="$(rustc --print sysroot)"
[[ -d "$sysroot/lib/rustlib/$triple" ]] || skip "rustup target add $triple"

work="$target/aarch64"
mkdir -p -- "$work/lists/partial" "$work/archives/partial" "$work/kernel" "$work/tools"
# The host's package lists are not changed.
apt=(-o "Dir::State=$work" -o "Dir::Cache=$work" -o Dir::State::status=/dev/null
    -o APT::Architecture=arm64 -o APT::Architectures::=arm64)

# Downloads a package and unpacks it: NAME FOLDER
fetch() {
    (cd -- "$work/archives" && apt-get "${apt[@]}" download "$1" >/dev/null 2>&1) ||
        skip "$1 for arm64 cannot be downloaded"
    dpkg-deb -x "$(find "$work/archives" -name "$1"_*.deb | sort | tail -n 1)" "$2"
}
find_kernel() {
    find "$work/kernel" -name 'vmlinuz-*' | sort | tail -n 1
}
busybox="$work/tools/bin/busybox"
if [[ -z "$(find_kernel)" || ! -x "$busybox" ]]; then
    apt-get "${apt[@]}" update >/dev/null 2>&1 || skip "there are no lists of arm64's packages"
    depends="$(apt-cache "${apt[@]}" depends linux-image-cloud-arm64 2>/dev/null || true)"
    package="$(awk '/Depends: linux-image/ && !seen++ { print $2 }' <<<"$depends")"
    [[ -n "$package" ]] || skip "apt does not know linux-image-cloud-arm64"
    fetch "$package" "$work/kernel"
    fetch busybox-static "$work/tools"
fi
kernel="$(find_kernel)"
[[ -n "$kernel" && -x "$busybox" ]] || die "there is no kernel or no busybox in the packages"

# GNU ld takes only one version script: the drop-ins need an lld, and the Rust toolchain has one.
host="$(rustc -vV | sed -n 's/^host: //p')"
linker="$work/aarch64-gcc"
printf '#!/bin/sh\nexec %s -B%s "$@"\n' "$compiler" "$sysroot/lib/rustlib/$host/bin/gcc-ld" \
    >"$linker"
chmod +x "$linker"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
export CC_aarch64_unknown_linux_gnu="$compiler" CARGO_TARGET_DIR="$work/build"
cargo test --release --target "$triple" --features uringlet/faulty --no-run \
    -p uringlet -p uringlet-libaio -p uringlet-posix-aio -p uringlet-io-uring \
    --lib --test conformance --test fs 2>&1 | tee -- "$work/log"

# Makes the content of the disk: the folders of a system, the C library, and the tests.
disk="$work/root"
rm -rf -- "$disk"
mkdir -p -- "$disk"/{bin,dev,lib,proc,sys,tests,tmp,etc} "$disk$CARGO_TARGET_DIR/$triple/tmp"
cp -- "$busybox" "$disk/bin/busybox"
cp -L -- /usr/aarch64-linux-gnu/lib/{ld-linux-aarch64.so.1,libc.so.6,libm.so.6,libgcc_s.so.1} \
    "$disk/lib"
printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$disk/etc/passwd"
sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$work/log" | while read -r test; do
    name="$(basename -- "${test%-*}")"
    "${compiler%gcc}strip" -o "$disk/tests/$name" -- "$test"
done
[[ -x "$disk/tests/conformance" ]] || die "the tests were not built"

cat >"$disk/init" <<SH
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
ulimit -n 65536
cd /tests
run() {
    echo "guest: \$*"
    timeout 1200 "\$@" 2>&1
    echo "guest: \$* ended with \$?"
}
for test in uringlet aio posix_aio uring uring_drop_in fs; do
    [ -x ./\$test ] && run ./\$test
done
for engine in ${engines[*]}; do
    export URINGLET_TEST_ENGINE=\$engine
    run ./conformance --skip matrix:: --test-threads=2
done
echo "guest: over"
sync
poweroff -f
SH
chmod +x "$disk/init"
rm -f -- "$work/disk.img"
mkfs.ext4 -q -F -E root_owner=0:0 -d "$disk" "$work/disk.img" 4G

log="$work/guest.log"
timeout 5400 qemu-system-aarch64 -M virt -accel tcg,thread=multi -cpu max,pauth-impdef=on \
    -smp 2 -m 2G -nographic -no-reboot -net none -kernel "$kernel" \
    -append "console=ttyAMA0 loglevel=3 panic=-1 root=/dev/nvme0n1 rw init=/init" \
    -drive "file=$work/disk.img,if=none,id=disk,format=raw,cache=unsafe" \
    -device nvme,drive=disk,serial=1 </dev/null | sed -u 's,\r$,,' | tee -- "$log"
grep -q '^guest: over$' "$log" || die "the guest did not get to its end"
awk '
    /^test result: / { passed += $4; failed += $6 }
    /^SKIPPED .+: / { sub(/: .*/, ""); if (!seen[$0]++) skipped++ }
    END { printf "aarch64: %d passed, %d failed, %d skipped\n", passed - skipped, failed, skipped }
' "$log"
if grep -E '^guest: .* ended with ' "$log" | grep -vE 'ended with 0$'; then
    die "tests failed in the guest"
fi
