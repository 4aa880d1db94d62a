#!/usr/bin/env bash
# Installs each package in a fresh Debian 12, runs fio on it, and removes it: ci/packages.sh
#
# Needs root, debootstrap, and what packaging/all.sh and `cargo install --path cli` have made; the
# latter is done here if URINGLET_INSTALLED does not name the command that it installs. The root
# file system is made once, in target/packages/debian-12; each case gets a copy of it, with fio and
# nothing else that was not there; the wheel's has pip, too. What cannot be done here is skipped,
# with the reason.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../packaging/common.sh"
help_if_asked "$@"
choose_architecture ""
PATH="$PATH:/usr/sbin:/sbin"
((EUID == 0)) || die "root only: it makes file systems and changes into them"
"$root/ci/setup.sh" --packages

base="$packages/debian-12"
case_root="$packages/debian-12-case"
# A Debian 12 with these packages, made once: $1 is its folder.
make_base() {
    local to="$1" server
    [[ ! -e "$to/complete" ]] || return 0
    rm -rf -- "$to"
    # The server that this machine itself has its packages from.
    server="$(grep -rhoE '(https?|mirror\+file):[^ ]+/debian/?( |$)' /etc/apt/sources.list \
        /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
            head -n 1)" ||
        true
    # shellcheck disable=SC2086 # no server: debootstrap has one of its own
    debootstrap --variant=minbase --include="$2" bookworm "$to" ${server:-}
    # It leaves this mounted.
    umount "$to/proc" 2>/dev/null || true
    touch "$to/complete"
}
make_base "$base" fio

table=()
row() {
    table+=("$(printf '%-14s %-32s %s' "$1" "$2" "$3")")
    printf '%s\n' "${table[-1]}"
}
passed=0
failed=0
skipped=0

mounted() {
    mount --bind /dev "$case_root/dev"
    mount --bind /dev/shm "$case_root/dev/shm"
    mount -t proc none "$case_root/proc"
}
unmounted() {
    local folder
    umount "$case_root/proc" "$case_root/dev/shm" "$case_root/dev" 2>/dev/null || true
    # What is removed next must not be this machine's.
    for folder in dev/shm dev proc; do
        ! mountpoint -q -- "$case_root/$folder" || die "$case_root/$folder is still mounted"
    done
}
trap unmounted EXIT

# Every path of the root that a package could change, with its content.
listing() {
    (cd -- "$case_root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp \
        -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache/ldconfig \
        -o -path ./etc/ld.so.cache -o -path ./packages \) -prune -o \
        \( -type f -printf '%p %s %T@\n' -o ! -type d -printf '%p %l\n' -o -printf '%p/\n' \) |
        LC_ALL=C sort)
}
inside() {
    # Neither variables nor descriptors of ours.
    chroot "$case_root" /usr/bin/env -i HOME=/root \
        PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
        sh -ec "$1"
}
# One step of a case: step CASE STEP COMMAND...
step() {
    local name="$1" what="$2" log="$packages/packages.log"
    shift 2
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        row "$name" "$what" passed
    else
        failed=$((failed + 1))
        row "$name" "$what" FAILED
        tail -n 20 "$log" >&2
        return 1
    fi
}

fio="fio --name=t --filename=/tmp/data --size=8M --bs=4k --rw=randrw --iodepth=16 --number_ios=2000"
# fio on a drop-in, in a sandbox or not; every request has to have gone through.
runs() {
    local engine="$1" options="$2" text
    text="$(inside "uringlet run $options --stats -- $fio --ioengine=$engine" 2>&1)" || {
        printf '%s\n' "$text"
        return 1
    }
    printf '%s\n' "$text"
    grep -q 'uringlet: summary' <<<"$text" && grep -Eq 'requests +2,[0-9]{3}' <<<"$text" &&
        grep -q 'err= 0' <<<"$text"
}
gone() {
    listing >"$packages/after"
    diff "$packages/before" "$packages/after"
}

# try CASE INSTALL REMOVE: both are commands inside, with the packages in /packages.
try() {
    local name="$1" install="$2" remove="$3"
    unmounted
    rm -rf --one-file-system -- "$case_root"
    cp -a -- "$base" "$case_root"
    mkdir -p -- "$case_root/packages"
    cp -- "${files[@]}" "$case_root/packages/"
    mounted
    listing >"$packages/before"
    # What fails is in the table already; the next case is tried all the same.
    {
        step "$name" "installed by one command" inside "$install" &&
            step "$name" "check -- fio" inside "uringlet check -- fio" &&
            step "$name" "fio, libaio" runs libaio "" &&
            step "$name" "fio, posixaio" runs posixaio "" &&
            step "$name" "fio, libaio, as in Docker" runs libaio "--forbid docker" &&
            step "$name" "fio, posixaio, as in Docker" runs posixaio "--forbid docker" &&
            step "$name" "removed without a trace" removed "$remove"
    } || true
    unmounted
}
removed() {
    inside "$1"
    gone
}

deb="$packages/uringlet_${version}_$deb_arch.deb"
libraries=("$packages/liburinglet0_${version}_$deb_arch.deb"
    "$packages/liburinglet-dev_${version}_$deb_arch.deb")
if [[ -f "$deb" ]]; then
    files=("$deb" "${libraries[@]}")
    try deb "dpkg -i /packages/*.deb" \
        "dpkg --purge uringlet liburinglet-dev liburinglet0; rm -f /var/lib/dpkg/*-old"
else
    row deb "not built: packaging/all.sh" skipped
    skipped=$((skipped + 1))
fi

archive="uringlet-$version-$arch-linux-gnu"
if [[ -f "$packages/$archive.tar.gz" ]]; then
    files=("$packages/$archive.tar.gz")
    unpack="cd /tmp && tar xzf /packages/$archive.tar.gz"
    try tarball "$unpack && $archive/install.sh" "$unpack && $archive/uninstall.sh"
else
    row tarball "not built: packaging/all.sh" skipped
    skipped=$((skipped + 1))
fi

installed="${URINGLET_INSTALLED-}"
if [[ -z "$installed" ]]; then
    (cd -- "$root" && cargo install --quiet --locked --force --path cli \
        --root "$packages/installed")
    installed="$packages/installed/bin/uringlet"
fi
files=("$installed")
try "cargo install" "cp /packages/uringlet /usr/local/bin/" \
    "rm -r /usr/local/bin/uringlet /var/cache/uringlet"

# No folder: no wheel.
wheel="$(find "$target/python/wheels" -name "uringlet-$version-*.whl" 2>/dev/null |
    head -n 1)" || true
if [[ -n "$wheel" ]]; then
    # pip itself is not what is tried.
    base="$packages/debian-12-python"
    make_base "$base" fio,python3-pip
    files=("$wheel")
    quiet="PYTHONDONTWRITEBYTECODE=1 PIP_ROOT_USER_ACTION=ignore PIP_BREAK_SYSTEM_PACKAGES=1"
    # It takes folders along that are empty then.
    try wheel "$quiet pip install --no-index /packages/*.whl" \
        "$quiet pip uninstall --yes uringlet; mkdir -p /usr/local/bin"
else
    row wheel "not built: ci/python.sh --only-wheel" skipped
    skipped=$((skipped + 1))
fi

printf '\n'
printf '%s\n' "${table[@]}"
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
