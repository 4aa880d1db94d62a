# What the scripts for packages share: sourced, not run.
# shellcheck shell=bash

# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../ci/common.sh"

packages="$target/packages"
# shellcheck disable=SC2034 # for the scripts that source this file
version="$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")"
# The version of the oldest glibc that the packages run with.
# shellcheck disable=SC2034 # as above
glibc=2.28

# Sets the names of the requested architecture, or of this machine's.
choose_architecture() {
    arch="${1:-$(uname -m)}"
    case "$arch" in
    x86_64) deb_arch=amd64 image_arch=amd64 ;;
    aarch64) deb_arch=arm64 image_arch=arm64 ;;
    *) die "unknown architecture $arch: expected x86_64 or aarch64" ;;
    esac
    triple="$arch-unknown-linux-gnu"
    multiarch="$arch-linux-gnu"
    built="$packages/built-$arch"
    setup="--packages"
    [[ "$arch" == "$(uname -m)" ]] || setup+=" $arch"
    # The scripts that source this file use these names.
    export arch deb_arch image_arch triple multiarch built setup
}

need_built() {
    [[ -x "$built/uringlet" ]] || die "$built/uringlet is not there: packaging/build.sh $arch"
}

# Archives get the time of the commit, so that archives of the same commit have the same bytes.
committed="$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s)"
SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$committed}"
export SOURCE_DATE_EPOCH

# Runs a program of the requested architecture, in QEMU's user mode if this machine has another.
emulated() {
    if [[ "$arch" == "$(uname -m)" ]]; then
        "$@"
    else
        need "qemu-$arch"
        "qemu-$arch" -L "/usr/$multiarch" "$@"
    fi
}
# Runs the built command, for example to write its manual.
run_built() {
    emulated "$built/uringlet" "$@"
}

# Installs the files that every package of the command has (tarball, deb, rpm) under a prefix:
# stage PREFIX-FOLDER
stage() {
    local to="$1" shell name
    install -d "$to/bin" "$to/lib/uringlet" "$to/share/man/man1" "$to/share/doc/uringlet"
    install -m 755 "$built/uringlet" "$to/bin/uringlet"
    for name in libaio.so libposix_aio.so liburing.so; do
        install -m 644 "$built/$name" "$to/lib/uringlet/"
    done
    run_built man --out "$to/share/man/man1"
    for shell in bash zsh fish; do
        case "$shell" in
        bash) install -d "$to/share/bash-completion/completions" &&
            run_built completions bash >"$to/share/bash-completion/completions/uringlet" ;;
        zsh) install -d "$to/share/zsh/vendor-completions" &&
            run_built completions zsh >"$to/share/zsh/vendor-completions/_uringlet" ;;
        fish) install -d "$to/share/fish/vendor_completions.d" &&
            run_built completions fish >"$to/share/fish/vendor_completions.d/uringlet.fish" ;;
        esac
    done
    install -m 644 "$root/README.md" "$root/CHANGELOG.md" "$to/share/doc/uringlet/"
    third_party "$to/share/doc/uringlet"
}

# Writes the licences of the linked crates: third_party FOLDER
third_party() {
    (cd -- "$root" && python3 packaging/third_party.py "$triple") >"$1/THIRD-PARTY-LICENSES"
    chmod 644 "$1/THIRD-PARTY-LICENSES"
}

# Runs the installer of the C library: stage_c PREFIX DESTDIR LIBDIR
stage_c() {
    local tools=""
    [[ "$arch" == "$(uname -m)" ]] || tools="$multiarch-"
    OBJCOPY="${tools}objcopy" NM="${tools}nm" \
        "$root/capi/install.sh" --from "$built" --libdir "$3" "$1" "$2"
}
