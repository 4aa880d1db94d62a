# What the scripts share: sourced, not run.
# shellcheck shell=bash

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
target="${CARGO_TARGET_DIR:-$root/target}"
case "$target" in /*) ;; *) target="$root/$target" ;; esac

# Prints the comment at the top of the script as its help.
usage() {
    awk 'NR > 1 && !/^#/ { exit } NR > 1 { sub(/^# ?/, ""); print }' "$0"
}

help_if_asked() {
    local argument
    for argument in "$@"; do
        case "$argument" in
        -h | --help)
            usage
            exit 0
            ;;
        esac
    done
}

die() {
    printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
    exit 2
}

# Ends the script if a program is missing. The message names ci/setup.sh with the arguments that
# are in $setup.
need() {
    command -v "$1" >/dev/null ||
        die "$1 is missing: run ci/setup.sh${setup:+ $setup}, or install its package"
}

# The command that starts a program on uringlet.
uringlet_command() {
    local command="${URINGLET:-$target/release/uringlet}"
    [[ -x "$command" ]] || die "$command is not there: cargo build --release"
    printf '%s\n' "$command"
}

file_system() {
    df --output=fstype -- "$1" | tail -n 1
}

# Prints the version that is measured, and the machine.
print_machine() {
    local model commit
    model="$(awk -F': *' '/^model name/ { print $2; exit }' /proc/cpuinfo)"
    commit="$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
    printf 'kernel %s, %s CPUs (%s), %s on %s, fio %s, commit %s\n' "$(uname -r)" "$(nproc)" \
        "${model:-unknown}" "$(file_system "$1")" \
        "$(df --output=source -- "$1" | tail -n 1)" "$(fio --version)" "$commit"
}

# The CPU time of a process and its descendants, in ticks (proc(5)).
ticks() {
    local pid="$1" child sum
    sum="$(awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$pid/stat")"
    for child in $(cat "/proc/$pid/task"/*/children 2>/dev/null); do
        sum=$((sum + $(ticks "$child")))
    done
    echo "$sum"
}

# Prints a rate per second, and the µs of CPU time per counted unit:
# rate_and_time RATE TICKS SECONDS
rate_and_time() {
    awk -v rate="$1" -v ticks="$2" -v seconds="$3" -v hz="$(getconf CLK_TCK)" \
        'BEGIN { printf "%s %.1f\n", rate, ticks * 1e6 / hz / (rate * seconds) }'
}

# A function of awk's language, median(VALUES, COUNT): returns the median of VALUES[1] to
# VALUES[COUNT], and sorts them. So the first value is the least, and the last the greatest.
awk_median='
    function median(values, count,    i, j, hold) {
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && values[j - 1] > values[j]; j--) {
                hold = values[j]; values[j] = values[j - 1]; values[j - 1] = hold
            }
        return (values[int((count + 1) / 2)] + values[int((count + 2) / 2)]) / 2
    }'

# Prints medians, and the ratio with its range: print_ratio NATIVE OURS. NATIVE and OURS are files
# with a line of rate_and_time for each round.
print_ratio() {
    paste -d ' ' -- "$1" "$2" | awk "$awk_median"'
        { a[NR] = $1; p[NR] = $2; b[NR] = $3; q[NR] = $4; r[NR] = $3 / $1 }
        END {
            middle = median(r, NR)
            printf "native %6.0f (%5.0f µs), ours %6.0f (%5.0f µs), ratio %.2f (%.2f to %.2f)\n", \
                median(a, NR), median(p, NR), median(b, NR), median(q, NR), middle, r[1], r[NR]
        }'
}

# Fetches the lists of source packages of Debian's release $2, or of the installed release, into
# $1/apt. Sets apt_options: with these options, apt-get uses these lists.
list_sources() {
    local lists="$1/apt" release mirror
    mkdir -p -- "$lists/lists/partial"
    # shellcheck disable=SC1091
    release="${2:-$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")}"
    mirror="$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
        grep -v snapshot | head -n 1 | tr -d ' ' || true)"
    echo "deb-src ${mirror:-http://deb.debian.org/debian} $release main" >"$lists/sources.list"
    apt_options=(-o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$lists/lists" -o APT::Sandbox::User=root)
    apt-get "${apt_options[@]}" update -qq
}

# Fetches Debian's source package of liburing into $1/source, outside of the repository. The package
# is that of the release $2, or of the installed release.
fetch_liburing() {
    local folder="$1"
    [[ -d "$folder/source" ]] && return 0
    list_sources "$folder" "${2-}"
    mkdir -p -- "$folder/fetch"
    (cd -- "$folder/fetch" && apt-get "${apt_options[@]}" source -qq liburing)
    mv -- "$folder/fetch"/liburing-*/ "$folder/source"
}

# Fetches the original sources of Debian's source package $2, without Debian's changes, into
# $1/source.tar. The package is that of the release $3.
fetch_original() {
    local folder="$1" package="$2" address sum
    list_sources "$folder" "$3"
    read -r address sum < <(apt-get "${apt_options[@]}" source -qq --print-uris "$package" |
        awk -F"'" '/\.orig\.tar\./ { sub(/.*SHA256:/, "", $3); print $2, $3; exit }')
    curl -fsS -o "$folder/source.tar" "$address"
    sha256sum --quiet --check <<<"$sum  $folder/source.tar"
}
