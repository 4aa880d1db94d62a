#!/usr/bin/env bash
# Runs uringlet in a guest of 8 CPUs in 4 NUMA nodes, emulated by QEMU:
# ci/topology-guest.sh [ARGUMENTS OF uringlet]
#
# Without arguments: runs the tests of placement, and `reproduce affinity` on the guest's disk,
# which must prove all 18 placements. The guest has only /dev/nvme0n1 (64 MiB, one interrupt). Its
# speed means nothing, its counters do.
#
# Needs Debian's packages qemu-system-x86, cpio and libc6-dev. Downloads the package behind
# linux-image-cloud-amd64, without installing it. If something is missing, the script names it and
# skips the run. Takes about half a minute in addition to the build of the static program. .ci/run
# does not run this script.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
case "${1-}" in -h | --help) help_if_asked "$1" ;; esac
cd -- "$root"

skip() {
    printf 'SKIPPED topology-guest: %s\n' "$*"
    exit 0
}

[[ "$(uname -m)" == x86_64 ]] || skip "the guest is an x86-64 machine, this is $(uname -m)"
for command in qemu-system-x86_64 cpio gzip cc dpkg-deb apt-get apt-cache; do
    command -v "$command" >/dev/null ||
        skip "$command is missing (Debian: apt-get install qemu-system-x86 cpio libc6-dev)"
done

work="$target/topology-guest"
mkdir -p -- "$work/root" "$work/kernel"
kernel="$(find "$work/kernel" -name 'vmlinuz-*' | sort | tail -n 1)"
if [[ -z "$kernel" ]]; then
    depends="$(apt-cache depends linux-image-cloud-amd64 2>/dev/null || true)"
    package="$(awk '/Depends: linux-image/ && !seen++ { print $2 }' <<<"$depends")"
    [[ -n "$package" ]] || skip "apt does not know linux-image-cloud-amd64"
    (cd -- "$work" && apt-get download "$package" >/dev/null 2>&1) ||
        skip "$package cannot be downloaded"
    dpkg-deb -x "$(find "$work" -maxdepth 1 -name "$package"_*.deb | sort | tail -n 1)" \
        "$work/kernel"
    kernel="$(find "$work/kernel" -name 'vmlinuz-*' | sort | tail -n 1)"
    [[ -n "$kernel" ]] || die "there is no kernel in $package"
fi

# Statically linked, because the guest has no libraries.
RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static" CARGO_TARGET_DIR="$work/build" \
    cargo build --release -p uringlet-cli --target x86_64-unknown-linux-gnu
cp -- "$work/build/x86_64-unknown-linux-gnu/release/uringlet" "$work/root/uringlet"
strip -- "$work/root/uringlet"

# The guest's first process mounts /proc, /sys, /dev and /tmp, runs the tests and the command, and
# turns the guest off.
cat >"$work/init.c" <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs a program, and returns its exit status. Its standard error is a file, which is printed
 * afterwards. So the program does not find a terminal to draw on. */
static int run(const char *path, char **arguments) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        dup2(open("/tmp/errors", O_CREAT | O_TRUNC | O_WRONLY, 0644), 2);
        execv(path, arguments);
        _exit(127);
    }
    waitpid(child, &status, 0);
    char text[4096];
    ssize_t count;
    int errors = open("/tmp/errors", O_RDONLY);
    while ((count = read(errors, text, sizeof text)) > 0)
        if (write(1, text, count) != count)
            break;
    close(errors);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

int main(void) {
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mkdir("/dev", 0755);
    mkdir("/tmp", 0755);
    mount("proc", "/proc", "proc", 0, "");
    mount("sysfs", "/sys", "sysfs", 0, "");
    mount("devtmpfs", "/dev", "devtmpfs", 0, "");
    mount("tmpfs", "/tmp", "tmpfs", 0, "");
    chdir("/tmp");
    setenv("NO_COLOR", "1", 1);
    static char text[4096];
    char *tests[] = {"placement", "--test-threads=1", NULL};
    char *arguments[64] = {"uringlet"};
    FILE *file = fopen("/arguments", "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    size_t count = 1;
    for (size_t at = 0; at < length && count < 63; at++)
        if (at == 0 || text[at - 1] == 0)
            arguments[count++] = text + at;
    int status = access("/placement", X_OK) == 0 ? run("/placement", tests) : 0;
    if (status == 0)
        status = run("/uringlet", arguments);
    printf("guest: exit status %d\n", status);
    fflush(stdout);
    sync();
    reboot(RB_POWER_OFF);
    return 0;
}
C
cc -static -O1 -o "$work/root/init" "$work/init.c" ||
    skip "cc cannot link statically (Debian: libc6-dev)"

rm -f -- "$work/root/placement"
if (($# == 0)); then
    RUSTFLAGS="${RUSTFLAGS-} -C target-feature=+crt-static" CARGO_TARGET_DIR="$work/build" \
        cargo test --release -p uringlet --test placement \
        --target x86_64-unknown-linux-gnu --no-run 2>&1 | tee -- "$work/log"
    tests="$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$work/log")"
    [[ -x "$tests" ]] || die "the tests were not built"
    strip -o "$work/root/placement" -- "$tests"
    set -- reproduce affinity --quick --seconds 0.5 --file /dev/nvme0n1
fi
printf '%s\0' "$@" >"$work/root/arguments"
(cd -- "$work/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs.gz"
truncate -s 64M "$work/disk.img"

log="$work/log"
machine=(-M q35 -accel "tcg,thread=multi" -cpu max -m 1G -smp "8,sockets=4,cores=2,threads=1")
for node in 0 1 2 3; do
    machine+=(-object "memory-backend-ram,id=m$node,size=256M"
        -numa "node,nodeid=$node,cpus=$((2 * node))-$((2 * node + 1)),memdev=m$node")
done
timeout 300 qemu-system-x86_64 "${machine[@]}" -nographic -no-reboot -net none \
    -kernel "$kernel" -initrd "$work/initramfs.gz" \
    -append "console=ttyS0 loglevel=3 panic=-1 rdinit=/init" \
    -drive "file=$work/disk.img,if=none,id=disk,format=raw" \
    -device nvme,drive=disk,serial=1,max_ioqpairs=1 </dev/null | tr -d '\r' | tee -- "$log"
grep -q '^guest: exit status 0$' "$log" || die "it failed in the guest"
if [[ "$*" == "reproduce affinity"* ]]; then
    grep -q '18 distinct on this machine, 18 of them proved' "$log" ||
        die "not all 18 placements were distinct and proved"
fi
