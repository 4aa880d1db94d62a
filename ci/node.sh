#!/usr/bin/env bash
# Runs Node.js's own tests of its file system natively and on the drop-in for io_uring, and
# compares: ci/node.sh [TEST...]
#
# Needs Node.js 20 or later. Fetches the source package of Debian 13, which has version 20, or of
# the unstable release for a later one. Nothing of it is kept in the repository. Node.js uses
# io_uring for files if UV_USE_IO_URING=1 is set. FORBID is the drop-in's sandbox (docker by
# default, none if it is empty). FOLDER is for the sources (target/node by default), LIMIT the
# number of seconds for each test (60). Fails if a test fails that passes natively. Also fails if a
# test prints more or fewer lines on standard error than natively; warnings of Node.js do not count.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need node
need curl
need timeout
uringlet="$(uringlet_command)"
folder="${FOLDER:-$target/node}"

fetch() {
    fetch_original "$folder" nodejs "$release"
    mkdir -- "$folder/partial"
    tar -xf "$folder/source.tar" -C "$folder/partial" --strip-components=1 --wildcards '*/test/*'
    mv -- "$folder/partial" "$folder/source"
}

sandbox="${FORBID-docker}"
ours=("$uringlet" run --io-uring always)
[[ -z "$sandbox" ]] || ours+=(--forbid "$sandbox")
release=trixie
major="$(node --version | sed 's/^v//; s/\..*//')"
((major >= 20)) || die "node is of version $major: 20 or later is needed"
((major == 20)) || release=sid
[[ -d "$folder/source" ]] || fetch
tests="$folder/source/test"
scratch="$(mktemp -d)"
trap 'rm -rf -- "$scratch"' EXIT
mkdir -- "$scratch"/{native,ours}

# $1: native or ours; $2: the test. Prints the test's name, its status, and the number of lines on
# its standard error.
run_test() {
    local side="$1" file="$2" name flags before=() status=0 place
    name="$(basename -- "$file" .js)"
    flags="$(sed -n 's|^// Flags: ||p' "$file" | tr '\n' ' ')"
    place="$scratch/$side/$name"
    mkdir -- "$place"
    if [[ "$side" == ours ]]; then read -ra before <<<"$run_ours"; fi
    # shellcheck disable=SC2086
    (cd -- "$folder/source" &&
        NODE_TEST_DIR="$place" UV_USE_IO_URING=1 timeout --kill-after=5 "${LIMIT:-60}" \
            "${before[@]}" node $flags "$file" </dev/null) \
        >"$place.out" 2>"$place.err" || status=$?
    rm -rf -- "$place"
    # Node's own warnings do not count, because they depend on garbage collection.
    echo "$name $status $(grep -cvE '^\(node:[0-9]+\) |^\(Use `node ' "$place.err" || true)"
}
export -f run_test
run_ours="${ours[*]} --"
export scratch folder run_ours

# Runs all tests on side $1, and writes the sorted lines of run_test into a file.
side() {
    printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'run_test "$@"' - "$1" |
        sort >"$scratch/$1.txt"
}

shopt -s nullglob
files=("$tests"/{parallel,sequential}/test-fs*.js "$tests"/parallel/test-file*.js)
if (($#)); then files=("${@/#/$tests/parallel/}") && files=("${files[@]/%/.js}"); fi
((${#files[@]})) || die "no test in $tests"
UV_USE_IO_URING=1 "${ours[@]}" --stats -- node -e 'fs.readFile("/proc/self/exe", () => 0)' 2>&1 |
    grep -E '^ *requests +[1-9]' || die "no request of node went through uringlet"
side native
side ours
passed=0
native=0
failed=0
while read -r name status lines our_status our_lines; do
    if ((status != 0)); then
        native=$((native + 1))
    elif ((our_status == 0 && lines == our_lines)); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: status $our_status, $our_lines lines of errors; natively 0 and $lines"
        tail -n 20 -- "$scratch/ours/$name.err"
    fi
done < <(join "$scratch/native.txt" "$scratch/ours.txt")
echo "Node.js $(node --version), sandbox ${sandbox:-none}:" \
    "$passed passed, $native not natively either, $failed failed"
((failed == 0 && passed > 0))
