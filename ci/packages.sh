#!/usr/bin/env bash
# Installs each package in a fresh Debian 12 and 13, runs fio on it, and removes it: ci/packages.sh
#
# Needs root, debootstrap, and what packaging/all.sh and ci/python.sh --only-wheel have made. Also
# runs `cargo install --path cli`, unless URINGLET_INSTALLED names the command that this installs.
# The root file systems are made once, in target/packages/debian-*. Each package gets a copy, with
# fio and nothing else added; the copy for the wheel also has python3-venv. Debian's rpm installs
# the rpm packages without checking what they require, because Fedora's packages cannot be fetched
# here. Packages are installed by the lines in README. The command of `cargo install --debug` runs
# fio on this machine. What cannot be done here is skipped, with the reason.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../packaging/common.sh"
help_if_asked "$@"
choose_architecture ""
PATH="$PATH:/usr/sbin:/sbin"
((EUID == 0)) || die "root only: it makes file systems and changes into them"
"$root/ci/setup.sh" --packages

case_root="$packages/debian-case"
# Makes a Debian with these packages, once: make_base SUITE FOLDER PACKAGES
make_base() {
    local suite="$1" to="$2" server
    [[ ! -e "$to/complete" ]] || return 0
    rm -rf -- "$to"
    # This is the server from which this machine gets its packages.
    server="$(grep -rhoE '(https?|mirror\+file):[^ ]+/debian/?( |$)' /etc/apt/sources.list \
        /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
            head -n 1)" ||
        true
    # shellcheck disable=SC2086 # no server: debootstrap has one of its own
    debootstrap --variant=minbase --include="$3" "$suite" "$to" ${server:-}
    # debootstrap leaves /proc mounted.
    umount "$to/proc" 2>/dev/null || true
    touch "$to/complete"
}

table=()
row() {
    table+=("$(printf '%-26s %-32s %s' "$1" "$2" "$3")")
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
    # The next step removes the root, in which no folder of this machine may be mounted.
    for folder in dev/shm dev proc; do
        ! mountpoint -q -- "$case_root/$folder" || die "$case_root/$folder is still mounted"
    done
}
trap unmounted EXIT

# Lists every path of the root that a package could change, with the size and time of a file. apt
# has debconf make tmp.ci for every package.
listing() {
    (cd -- "$case_root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp \
        -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache/ldconfig \
        -o -path ./var/lib/apt -o -path ./var/cache/apt \
        -o -path ./var/cache/debconf/tmp.ci \
        -o -path ./root/.rpmdb -o -path ./var/lib/rpm \
        -o -path ./etc/ld.so.cache -o -path ./packages \) -prune -o \
        \( -type f -printf '%p %s %T@\n' -o ! -type d -printf '%p %l\n' -o -printf '%p/\n' \) |
        LC_ALL=C sort)
}
inside() {
    # The command gets no variables of this script.
    chroot "$case_root" /usr/bin/env -i HOME=/root DEBIAN_FRONTEND=noninteractive \
        PATH=/opt/env/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin \
        sh -ec "$1"
}
# Runs a step of a case, which is a package in a release, and adds a row to the table:
# step CASE STEP COMMAND...
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
# Runs fio on a drop-in, in a sandbox or not. Every request has to go through the drop-in.
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
# Checks that there are lists of licences, and that each list names the crates that the SBOM names.
licensed() {
    local text count=0
    python3 "$root/packaging/sbom.py" "$triple" >"$packages/sbom.json" || return 1
    while read -r text; do
        python3 "$root/packaging/third_party.py" --check "$packages/sbom.json" "$text" || return 1
        count=$((count + 1))
    done < <(find "$case_root" -xdev -path "$case_root/tmp" -prune -o -path "$case_root/packages" \
        -prune -o -name 'THIRD-PARTY-LICENSES*' -print)
    ((count > 0))
}
gone() {
    listing >"$packages/after"
    diff "$packages/before" "$packages/after"
}

# Prints a command that runs the line of README that begins with TEXT, without sudo, in a folder:
# of_readme TEXT FOLDER
of_readme() {
    local line
    line="$(grep -- "^$1" "$root/README.md")" || die "README has no line that begins with $1"
    printf 'cd %s && %s' "$2" "${line//sudo /}"
}

# Tests one package: try CASE INSTALL REMOVE. INSTALL and REMOVE are commands that run in the root,
# with the packages in /packages.
try() {
    local name="$1 in Debian $release" install="$2" remove="$3"
    unmounted
    rm -rf --one-file-system -- "$case_root"
    cp -a -- "$base" "$case_root"
    mkdir -p -- "$case_root/packages"
    cp -- "${files[@]}" "$case_root/packages/"
    mounted
    listing >"$packages/before"
    # A failure is already in the table: the next case runs nevertheless.
    {
        step "$name" "installed by one command" inside "$install" &&
            { [[ "$1" == "cargo install" ]] || step "$name" "licences" licensed; } &&
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
archive="uringlet-$version-$arch-linux-gnu"
rpms=("$packages/$arch/"*"uringlet"*"-$version-"*".$arch.rpm")
installed="${URINGLET_INSTALLED-}"
if [[ -z "$installed" ]]; then
    echo "cargo install: builds for minutes"
    (cd -- "$root" && cargo install --quiet --locked --force --path cli \
        --root "$packages/installed")
    installed="$packages/installed/bin/uringlet"
fi
# Takes the wheel that README names. ci/python.sh --native makes a wheel of another name.
wheel="$target/python/wheels/$(grep -o "uringlet-$version-[^ ]*\.whl" "$root/README.md")"
left_out() {
    row "$1" "$2" skipped
    skipped=$((skipped + 1))
}

# Tests every package in one release of Debian: in_debian SUITE RELEASE
in_debian() {
    local suite="$1" release="$2" base="$packages/debian-$2"
    make_base "$suite" "$base" fio
    if [[ -f "$deb" ]]; then
        files=("$deb" "${libraries[@]}")
        try deb "$(of_readme "sudo apt install" /packages) && dpkg -i liburinglet*.deb" \
            "dpkg --purge uringlet liburinglet-dev liburinglet0"
    else
        left_out deb "not built: packaging/all.sh"
    fi
    if [[ -f "$packages/$archive.tar.gz" ]]; then
        files=("$packages/$archive.tar.gz")
        try tarball "$(of_readme "tar xzf" /packages)" "/packages/$archive/uninstall.sh"
    else
        left_out tarball "not built: packaging/all.sh"
    fi
    files=("$installed")
    try "cargo install" "cp /packages/uringlet /usr/local/bin/" \
        "rm -r /usr/local/bin/uringlet /var/cache/uringlet"
    if [[ -f "$wheel" ]]; then
        base="$packages/debian-$release-python"
        make_base "$suite" "$base" fio,python3-venv
        files=("$wheel")
        try wheel "export PYTHONDONTWRITEBYTECODE=1; cp /packages/*.whl /opt/
            $(of_readme "python3 -m venv" /opt)" \
            "pip uninstall --yes uringlet; ! command -v uringlet; rm -r /opt/env /opt/*.whl"
    else
        left_out wheel "not built: ci/python.sh --only-wheel"
    fi
    if [[ -f "${rpms[0]}" ]]; then
        base="$packages/debian-$release-rpm"
        make_base "$suite" "$base" fio,rpm
        files=("${rpms[@]}")
        # On Fedora, these folders belong to other packages, and stay.
        fedoras="lib64/pkgconfig share/licenses share/fish/vendor_completions.d"
        fedoras+=" share/zsh/site-functions"
        try rpm "rpm -i --nodeps /packages/*.rpm" \
            "rpm -e --nodeps uringlet liburinglet-devel liburinglet
            cd /usr && rmdir -p --ignore-fail-on-non-empty $fedoras"
    else
        left_out rpm "not built: packaging/all.sh"
    fi
}
in_debian bookworm 12
in_debian trixie 13
echo "cargo install --debug: builds for minutes"
(cd -- "$root" && cargo install --quiet --locked --force --debug --path cli \
    --root "$packages/installed-debug")
inside() {
    PATH="$packages/installed-debug/bin:$PATH" sh -ec "cd '$packages' && ${1//\/tmp\/data/data}"
}
step "cargo install --debug" "fio, libaio" runs libaio "" || true
rm -f -- "$packages/data"

printf '\n'
printf '%s\n' "${table[@]}"
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
