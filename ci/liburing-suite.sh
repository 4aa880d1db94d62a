#!/usr/bin/env bash
# Runs liburing's own tests natively and on the drop-in, and prints a table: ci/liburing-suite.sh
# [--newest] [TEST...]
#
# Fetches Debian's source package (nothing of it is kept in the repository). Builds its tests twice,
# with its own library and against the drop-in, and runs each with a time limit. Without a TEST,
# newer tests of polls, tags, drains, deferred work and resizes follow, from Debian unstable.
# --newest runs only these newer tests, or the TESTs of that release. FOLDER is the scratch folder
# (target/liburing-suite by default), PROFILE the build of the drop-in (release by default). LIMIT
# is the number of seconds for each test (60, --newest 240). The drop-in may take ten times the
# native time if that is more, but at most three times the native CPU time plus one second. The
# native results are kept in the folder, and repeated only with NATIVE=1. Exits with 1 if a test
# that is not excepted crashes, hangs, or fails on the drop-in only.
#
# ENGINE is the engine (auto by default), and FORBID the sandbox of `uringlet run --forbid` for the
# drop-in (none by default). With FORBID, the command has to be built, too.
#
# For the drop-in, the tests' own system calls go through the C library's syscall(), as in liburing
# on unknown processors. The drop-in would not see calls that the tests make by their own
# instructions: these would go to the kernel.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
need make
need timeout
profile="${PROFILE:-release}"
folder="${FOLDER:-$target/liburing-suite}"
is_newest=
if [[ "${1-}" == --newest ]]; then
    is_newest=1
    shift
    folder+=/newest
fi
limit="${LIMIT:-$((is_newest ? 240 : 60))}"
library="$target/$profile/liburing.so"
[[ -f "$library" ]] || die "$library is not there: cargo build -p uringlet-io-uring"
runner=()
if [[ -n "${FORBID-}" ]]; then
    command="$target/$profile/uringlet"
    [[ -x "$command" ]] || die "$command is not there: cargo build"
    runner=("$command" run --io-uring always --forbid "$FORBID" --)
fi
mkdir -p -- "$folder"
folder="$(cd -- "$folder" && pwd)"

# Tests that may fail, each with its reason. None may crash, and only across-fork may hang.
excepted() {
    case "$1" in
    defer-taskrun) echo "the thread for polls sets the flag a moment later" ;;
    socket) echo "closes descriptor 0, its ring's, while another thread waits on it" ;;
    send_recv | read-write) echo "fails on this kernel, too" ;;
    across-fork) echo "the child of a fork uses its parent's ring; its barrier waits without end" ;;
    io_uring_passthrough | iopoll)
        echo "is not built: needs a function that only the static library has"
        ;;
    io-cancel | single-issuer | sqpoll-cancel-hang)
        echo "rings of other processes"
        ;;
    iowait) echo "only the kernel can count a CPU as waiting for I/O" ;;
    fd-install) echo "registers credentials, which is refused" ;;
    pollfree) echo "starts processes, of which each sets up an engine: more CPU time" ;;
    sqpoll-sleep) echo "times the flag of a poller that is not there" ;;
    nolibc) echo "makes its calls by instructions of its own: left to the kernel" ;;
    send-zerocopy | bind-listen | d77a67ed5f27 | empty-eownerdead) echo "needs what is refused" ;;
    *) return 1 ;;
    esac
}

# Builds the tests into folder $1, from the sources in $2. The rest are the arguments that link the
# library.
build_tests() {
    local to="$1" source="$2" name
    shift 2
    mkdir -p -- "$to"
    # Functions that only the static library has.
    cat >"$to/static-only.c" <<'END'
#include <liburing.h>
#include <sys/mman.h>
__attribute__((weak)) void io_uring_unmap_rings(struct io_uring_sq *sq, struct io_uring_cq *cq)
{
    munmap(sq->ring_ptr, sq->ring_sz);
    if (cq->ring_ptr != sq->ring_ptr)
        munmap(cq->ring_ptr, cq->ring_sz);
}
__attribute__((weak)) int __io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                                       struct io_uring_params *p, void *memory,
                                                       size_t size)
{
    (void)memory, (void)size;
    return io_uring_queue_init_params(entries, ring, p);
}
END
    for name in "${tests[@]}"; do
        [[ -x "$to/$name" ]] && continue
        cc -O1 -g -w -D_GNU_SOURCE -D__SANE_USERSPACE_TYPES__ \
            -DLIBURING_BUILD_TEST -I"$source/src/include" \
            -include "$source/config-host.h" -o "$to/$name" \
                "$source/test/$name.c" "$source/test/helpers.c" "$to/static-only.c" \
            "$@" -lpthread 2>"$to/$name.log" || echo "not built: $name ($to/$name.log)" >&2
    done
}

# Runs test $2 from folder $1 for $3 seconds at most. Prints its status, seconds, and seconds of CPU
# time.
run_test() {
    local from="$1" name="$2" limit="$3" scratch status=0 begin end TIMEFORMAT='%U + %S'
    [[ -x "$from/$name" ]] || {
        echo "unbuilt 0 0"
        return
    }
    scratch="$(mktemp -d -- "$folder/run-XXXXXX")"
    ln -s -- "$from/exec-target" "$scratch/exec-target"
    mkdir -- "$scratch/test"
    ln -s -- "$from/exec-target" "$scratch/test/exec-target"
    begin="$(date +%s.%N)"
    {
        time (cd -- "$scratch" &&
            timeout --kill-after=5 "$limit" env "${environment[@]}" "$from/$name" \
                >"$from/$name.out" 2>&1)
    } 2>"$from/$name.cpu" || status=$?
    end="$(date +%s.%N)"
    rm -rf -- "$scratch"
    local word
    case "$status" in
    0) word=pass ;;
    77) word=skip ;;
    124 | 137) word=hang ;;
    129 | 13? | 14?) word=crash ;;
    *) word=fail ;;
    esac
    printf '%s %.1f %.1f\n' "$word" "$(echo "$end - $begin" | bc -l)" \
        "$(tail -n 1 -- "$from/$name.cpu" | bc -l)"
}

fetch_liburing "$folder" "${is_newest:+sid}"
source="$folder/source"
[[ -f "$source/config-host.h" ]] || (cd -- "$source" && ./configure >"$folder/configure.log")
[[ -f "$source/src/liburing.a" ]] || make -s -C "$source/src" liburing.a >"$folder/make.log" 2>&1
mirror="$folder/source-ours"
if [[ ! -d "$mirror" ]]; then
    cp -r -- "$source" "$mirror"
    sed -i 's/^#if defined(__x86_64__) .*/#if 0/; s/^#elif defined(__aarch64__)/#elif 0/' \
        "$mirror/src/syscall.h"
    sed -i '/CONFIG_NOLIBC/d' "$mirror/config-host.h"
fi
mkdir -p -- "$folder/lib"
ln -sf -- "$library" "$folder/lib/liburing.so.2"
ln -sf -- "$library" "$folder/lib/liburing.so"

mapfile -t tests < <(cd -- "$source/test" && grep -lE '(^|[^_a-z])main\(' -- *.c |
    sed 's/\.c$//' | sort)
chosen=("$@")
if ((${#chosen[@]} == 0 && is_newest)); then
    mapfile -t chosen < <(printf '%s\n' "${tests[@]}" | grep -xE \
        -e 'rsrc_tags|link_drain|eploop|evloop|poll|poll-mshot-.*|defer-taskrun|timeout' \
        -e 'resize-rings|ring-query')
fi
if ((is_newest)); then tests=("${chosen[@]}" exec-target); fi
((${#chosen[@]})) || chosen=("${tests[@]}")
build_tests "$folder/native" "$source" "$source/src/liburing.a"
build_tests "$folder/ours" "$mirror" -L"$folder/lib" -luring
declare -A count=()
failed=()
printf '%-24s %-23s %-23s %s\n' test 'native, CPU time' 'drop-in, CPU time' verdict
for name in "${chosen[@]}"; do
    [[ "$name" == exec-target ]] && continue
    environment=()
    kept="$folder/native/$name.times"
    [[ -s "$kept" && -z "${NATIVE-}" ]] || run_test "$folder/native" "$name" "$limit" >"$kept"
    read -r native native_time native_cpu <"$kept"
    environment=("LD_LIBRARY_PATH=$folder/lib" "URINGLET_ENGINE=${ENGINE:-auto}")
    if ((${#runner[@]})); then
        # The command preloads the drop-in that it carries.
        environment+=("${runner[@]}")
    else
        environment+=("LD_PRELOAD=$folder/lib/liburing.so.2")
    fi
    longest="$(awk -v limit="$limit" -v native="$native_time" \
        'BEGIN { print (native * 10 > limit ? native * 10 : limit) }')"
    read -r ours ours_time ours_cpu < <(run_test "$folder/ours" "$name" "$longest")
    # CPU time is compared, because it does not depend on what else the machine does.
    if [[ "$native/$ours" == pass/pass ]] &&
        (($(echo "$ours_cpu > 3 * $native_cpu + 1" | bc -l))); then
        ours=slow
    fi
    reason=
    case "$native/$ours" in
    pass/pass) verdict=pass ;;
    skip/skip | pass/skip | skip/pass) verdict=skip ;;
    */crash | */hang) verdict=FAIL ;;
    pass/* | skip/*) verdict=FAIL ;;
    *) verdict=native ;;
    esac
    if [[ "$native" == "$ours" && "$native" != pass && "$native" != skip ]]; then verdict=native; fi
    if reason="$(excepted "$name")"; then
        if [[ "$verdict" == FAIL && "$ours" != crash ]] &&
            [[ "$ours" != hang || "$name" == across-fork ]]; then
            verdict=excepted
        fi
    fi
    [[ "$verdict" != FAIL ]] || failed+=("$name")
    count[$verdict]=$((${count[$verdict]-0} + 1))
    [[ "$verdict" == excepted ]] || reason=
    printf '%-24s %-5s %6s s %5s s  %-5s %6s s %5s s  %s%s\n' \
        "$name" "$native" "$native_time" "$native_cpu" "$ours" "$ours_time" "$ours_cpu" \
        "$verdict" "${reason:+ ($reason)}"
done
echo
printf 'pass %s, skip %s, excepted %s, not passed natively either %s, fail %s\n' \
    "${count[pass]-0}" "${count[skip]-0}" \
    "${count[excepted]-0}" "${count[native]-0}" "${count[FAIL]-0}"
status=0
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}"
    status=1
fi
if (($# == 0)) && [[ -z "$is_newest" ]]; then
    "$0" --newest || status=1
fi
exit "$status"
