#!/usr/bin/env bash
# Runs the suites of Rust's runtimes on io_uring natively and on the drop-in, and compares them by
# test: ci/runtimes.sh [SUITE...]
#
# The suites are io-uring (the crate), monoio, tokio-uring and compio; glommio only if it is named.
# Fetches their sources at fixed versions and builds their tests; nothing of them is kept in the
# repository. FOLDER is the folder for them (target/runtimes by default), PROFILE the build of the
# drop-in (release by default), LIMIT the number of seconds for each test (60). A test that fails
# runs up to twice more, natively as well as on the drop-in. Fails if a test fails that passes
# natively and is not excepted.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cargo
need curl
need git
need timeout
profile="${PROFILE:-release}"
uringlet="$(URINGLET="${URINGLET:-$target/$profile/uringlet}" uringlet_command)"
folder="${FOLDER:-$target/runtimes}"
limit="${LIMIT:-60}"
mkdir -p -- "$folder"
folder="$(cd -- "$folder" && pwd)"
suites=(io-uring monoio tokio-uring compio)
if (($#)); then suites=("$@"); fi

# Prints the repository and the commit of a suite's sources, or the address and the checksum of a
# crate.
origin() {
    local github=https://github.com
    case "$1" in
    io-uring) echo $github/tokio-rs/io-uring ba9149010ccda85bcdf28623d9268b10dd353a93 ;;
    monoio) echo $github/bytedance/monoio 212fde187f3d41f65ecd35b9cac80f7e246bb58e ;;
    compio) echo $github/compio-rs/compio 9721017467cb18edbc58ff11299e321738962a20 ;;
    glommio) echo $github/DataDog/glommio 8434815962ce0bc161ace1967137213dc2334e4b ;;
    tokio-uring)
        echo https://static.crates.io/crates/tokio-uring/tokio-uring-0.5.0.crate \
            748482e3e13584a34664a710168ad5068e8cb1d968aa4ffa887e83ca6dd27967
        ;;
    *) die "no such suite: $1" ;;
    esac
}

# Prints cargo's arguments that build the tests of a suite.
arguments() {
    case "$1" in
    io-uring) echo build -p io-uring-test ;;
    monoio) echo test --no-run -p monoio ;;
    tokio-uring) echo test --no-run ;;
    compio) echo test --no-run -p compio-driver -p compio-runtime -p compio-fs -p compio-net ;;
    glommio) echo test --no-run -p glommio --lib ;;
    esac
}

# Tests that pass natively only, each with its reason.
excepted() {
    case "$1" in
    io-uring/test_tcp_recvzc) echo "receives without a copy are refused: it leaves itself out" ;;
    io-uring/test_race)
        echo "fails natively, too, more often than not: reads a pipe whose writer may be gone"
        ;;
    monoio/uring_test_fd_leak_cancel_fail)
        echo "its listener blocks: a worker accepts, and the cancel comes first"
        ;;
    *) return 1 ;;
    esac
}

fetch() {
    local place="$folder/$1" address commit
    [[ -d "$place" ]] && return 0
    read -r address commit < <(origin "$1")
    rm -rf -- "$place.partial"
    if [[ "$address" == *.crate ]]; then
        mkdir -- "$place.partial"
        curl -fsS -o "$place.crate" "$address"
        sha256sum --quiet --check <<<"$commit  $place.crate"
        tar -xzf "$place.crate" -C "$place.partial" --strip-components=1
        # Otherwise cargo looks for a workspace in the folders above.
        echo '[workspace]' >>"$place.partial/Cargo.toml"
    else
        git init -q -- "$place.partial"
        git -C "$place.partial" fetch -q --depth 1 -- "$address" "$commit"
        git -C "$place.partial" checkout -q FETCH_HEAD
        git -C "$place.partial" submodule --quiet update --init --depth 1
    fi
    mv -- "$place.partial" "$place"
}

# Builds the tests of a suite, and prints the paths of their programs.
build() {
    local words
    read -ra words < <(arguments "$1")
    (cd -- "$folder/$1" && CARGO_TARGET_DIR="$folder/target" CARGO_PROFILE_DEV_DEBUG=0 \
        CARGO_PROFILE_TEST_DEBUG=0 cargo "${words[@]}" >"$folder/$1.log" 2>&1) ||
        { tail -n 20 -- "$folder/$1.log" >&2 && die "$1 cannot be built"; }
    if [[ "$1" == io-uring ]]; then echo "$folder/target/debug/io-uring-test"; fi
    sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$folder/$1.log"
}

# Prints the tests of a program of a suite.
tests_of() {
    if [[ "$1" == io-uring ]]; then
        grep -o 'tests::[a-z_]*::test_[a-z0-9_]*' "$folder/io-uring/io-uring-test/src/main.rs" |
            sed 's/.*:://' | sort -u
    else
        "$2" --list --format terse 2>/dev/null | sed -n 's/: test$//p'
    fi
}

# $1: the suite; $2: its program; $3: a test; the rest: the command that runs the program. Prints
# how often the test has passed. A test of the crate io-uring does not run, and does not count, if
# it needs a feature that is missing.
run_once() {
    local suite="$1" program="$2" test="$3" out="$scratch/out"
    shift 3
    cd -- "$scratch/place"
    if [[ "$suite" == io-uring ]]; then
        timeout --kill-after=5 "$limit" "$@" "$program" "::$test" </dev/null >"$out" 2>&1 &&
            awk '/^Test count/ { count += $3 } END { print count + 0 }' "$out"
    else
        timeout --kill-after=5 "$limit" "$@" "$program" --exact "$test" </dev/null >"$out" 2>&1 &&
            echo 1
    fi
}

run_test() {
    local count
    for _ in 1 2 3; do
        if count="$(run_once "$@")" && ((count > 0)); then
            echo "$count"
            return 0
        fi
    done
    echo 0
}

scratch="$(mktemp -d)"
trap 'rm -rf -- "$scratch"' EXIT
mkdir -- "$scratch/place"
failed=0
table=()
for suite in "${suites[@]}"; do
    origin "$suite" >/dev/null
    fetch "$suite"
    build "$suite" >"$scratch/programs"
    natively=0 passed=0 exceptions=0
    while read -r program; do
        while read -r test; do
            expected="$(run_test "$suite" "$program" "$test")"
            ((expected > 0)) || continue
            natively=$((natively + 1))
            count="$(run_test "$suite" "$program" "$test" "$uringlet" run --io-uring always --)"
            if ((count >= expected)); then
                passed=$((passed + 1))
            elif reason="$(excepted "$suite/$test")"; then
                exceptions=$((exceptions + 1))
                echo "excepted: $suite/$test: $reason"
            else
                failed=$((failed + 1))
                echo "FAIL $suite/$test ($(basename -- "$program")): $count of $expected"
                tail -n 20 -- "$scratch/out"
            fi
        done < <(tests_of "$suite" "$program")
    done <"$scratch/programs"
    ((natively > 0)) || die "no test of $suite passes natively"
    table+=("$(printf '%-12s %8d %8d %8d' "$suite" "$natively" "$passed" "$exceptions")")
done
printf '%-12s %8s %8s %8s\n' suite natively here excepted
printf '%s\n' "${table[@]}"
((failed == 0))
