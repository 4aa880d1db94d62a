#!/usr/bin/env bash
# Runs the conformance suite and the tests of uringlet::fs as static programs on musl: ci/musl.sh
#
# The engines are auto and workers. If this script runs as root, it runs the tests once more in a
# root file system of busybox. That system has no shared library, and nothing of glibc. Installs
# rustup's target for musl. Needs cc for the C files of crates that the tests use. Downloads
# Debian's busybox-static without installing it. Skips what cannot be done on this machine.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
PATH="$PATH:/usr/sbin:/sbin"
cd -- "$root"
triple="$(uname -m)-unknown-linux-musl"
rustup target add "$triple"
export "CC_${triple//-/_}=${CC:-cc}"
work="$target/musl"
mkdir -p -- "$work"

# Builds a test, and prints where it is: build OPTIONS...
build() {
    cargo test -p uringlet --target "$triple" "$@" --no-run 2>&1 | tee -- "$work/log" >&2
    realpath -- "$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$work/log")"
}
conformance="$(build --features faulty --test conformance)"
awaited="$(build --features faulty,tokio,futures-io,stream,bytes --test fs)"

# Runs both test programs: suites COMMAND... COMMAND gets a program and its arguments.
suites() {
    for engine in auto workers; do
        URINGLET_TEST_ENGINE="$engine" "$@" "$conformance" --skip matrix::
    done
    "$@" "$awaited"
}
# Runs a command in the folder in which cargo would run the tests.
there() {
    (cd -- "$root/core" && "$@")
}
suites there

skip() {
    printf 'SKIPPED the suites in a root file system of busybox: %s\n' "$*"
    exit 0
}
((EUID == 0)) || skip "root only: it changes into it"
if [[ ! -x "$work/busybox/bin/busybox" ]]; then
    rm -rf -- "$work"/busybox*
    (cd -- "$work" && apt-get download busybox-static >/dev/null 2>&1 &&
        dpkg-deb -x busybox-static_*.deb busybox) || skip "busybox-static cannot be downloaded"
fi
place="$work/root"
unmounted() {
    umount "$place/proc" "$place/dev/shm" "$place/dev" 2>/dev/null || true
    # The next step removes the folder, in which no folder of this machine may be mounted.
    for folder in dev/shm dev proc; do
        ! mountpoint -q -- "$place/$folder" || die "$place/$folder is still mounted"
    done
}
trap unmounted EXIT
unmounted
rm -rf --one-file-system -- "$place"
mkdir -p -- "$place"/{bin,dev,etc,proc,tests,tmp} "$place$target/$triple/tmp"
cp -- "$work/busybox/bin/busybox" "$place/bin/"
# Two tests of uringlet::fs read these sources.
mkdir -p -- "$place$root"/{core/src,docs}
cp -r -- core/src/fs "$place$root/core/src/"
cp -- docs/coming-from.md "$place$root/docs/"
chroot "$place" /bin/busybox --install -s /bin
printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >"$place/etc/passwd"
mount --bind /dev "$place/dev"
mount --bind /dev/shm "$place/dev/shm"
mount -t proc none "$place/proc"
inside() {
    cp -- "$1" "$place/tests/"
    chroot "$place" /bin/env -i PATH=/bin URINGLET_TEST_ENGINE="${URINGLET_TEST_ENGINE-auto}" \
        /bin/sh -c 'cd /tests && exec "$@"' sh "./$(basename -- "$1")" "${@:2}"
}
suites inside
