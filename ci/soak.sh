#!/usr/bin/env bash
# Looks for lost, repeated or wrong results, for a long time:
#
#   ci/soak.sh SECONDS [FOLDER]             fio writes and verifies through the drop-ins
#   ci/soak.sh --requests COUNT [RECORD]    random requests through the engine, with faults
#
# With --requests, a seed determines delays, reorderings, short transfers, EIO and EAGAIN. Runs take
# turns on the engines that can make such faults. Each completion is checked, and each byte is
# compared. A run has 10 million requests. RECORD (target/soak-requests) has a line for each run
# that passed, so that a restarted script continues. For a failed run, the script prints the command
# that repeats it.
#
# Without --requests, fio runs rounds of jobs until the time is over, at least one round. The jobs
# are buffered, direct, reaping from the ring, 16 threads, mixed sizes, and POSIX AIO. Stops at the
# first job that fails or hangs for five minutes, and prints the command that repeats this job.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"

# Runs the engine's stress tests until RECORD counts this many requests.
requests() {
    local goal="$1" record="${2:-$target/soak-requests}" chunk=10000000 done_before seed engine
    local engines=(faulty faulty:workers faulty:linux_aio faulty:io_uring) log
    local tests=(cargo test --release -p uringlet --features faulty --test conformance)
    [[ "$goal" =~ ^[0-9]+$ ]] || die "--requests: how many? (--help)"
    cd -- "$root"
    "${tests[@]}" --no-run
    mkdir -p -- "$(dirname -- "$record")"
    touch -- "$record"
    log="$(mktemp)"
    SECONDS=0
    while true; do
        done_before="$(awk '{ n += $2 } END { print n + 0 }' "$record")"
        ((done_before < goal)) || break
        seed=$((done_before / chunk + 1))
        engine="${engines[seed % ${#engines[@]}]}"
        # There are two stress tests, each of which makes half of the requests.
        local run=(env URINGLET_TEST_ENGINE="$engine" URINGLET_TEST_FAULTS=all
            URINGLET_TEST_SEED="$seed" URINGLET_STRESS_REQUESTS=$((chunk / 2))
            "${tests[@]}" -- stress::)
        if ! "${run[@]}" >"$log" 2>&1 || ! grep -q '^test result: ok\. 2 passed' "$log"; then
            cat -- "$log"
            printf 'FAILED after %d requests; again:' "$done_before"
            printf ' %q' "${run[@]}"
            printf '\n'
            exit 1
        fi
        printf '%s %d %s\n' "$seed" "$chunk" "$engine" >>"$record"
    done
    rm -f -- "$log"
    printf '%d requests in, as many out, each byte as it should be; %d s in this run; %s\n' \
        "$done_before" "$SECONDS" "$record"
}

if [[ "${1-}" == --requests ]]; then
    requests "${2-}" "${3-}"
    exit 0
fi
seconds="${1-}"
[[ "$seconds" =~ ^[0-9]+$ ]] || die "how many seconds? (--help)"
need fio
uringlet="$(uringlet_command)"
mkdir -p -- "${2:-$target}"
folder="$(mktemp -d -- "${2:-$target}/soak-XXXXXX")"
trap 'rm -rf -- "$folder"' EXIT
print_machine "$folder"

common=(--ioengine=libaio --rw=randrw --iodepth=32 --verify=crc32c --verify_fatal=1
    --group_reporting --output-format=terse --terse-version=3)
names=(buffered direct userspace_reap direct_reap threads mixed_sizes posix direct_posix
    posix_threads)
options() {
    case "$1" in
    buffered) echo --bs=4k --size=64M ;;
    direct) echo --bs=4k --size=64M --direct=1 ;;
    userspace_reap) echo --bs=4k --size=64M --userspace_reap ;;
    direct_reap) echo --bs=4k --size=64M --direct=1 --userspace_reap ;;
    threads) echo --bs=4k --size=8M --numjobs=16 --thread ;;
    mixed_sizes) echo --bsrange=512-128k --bs_unaligned --size=64M --iodepth_batch=8 --fsync=64 ;;
    # fio takes the last --ioengine, so that this one replaces libaio.
    posix) echo --ioengine=posixaio --bs=4k --size=64M --fsync=64 ;;
    direct_posix) echo --ioengine=posixaio --bs=4k --size=64M --direct=1 ;;
    posix_threads) echo --ioengine=posixaio --bs=4k --size=8M --numjobs=16 --thread ;;
    esac
}

direct_works=1
if ! dd if=/dev/zero of="$folder/probe" bs=4096 count=1 oflag=direct status=none 2>/dev/null; then
    direct_works=0
    echo "SKIPPED direct, direct_reap, direct_posix: no direct I/O on $(file_system "$folder")"
fi

SECONDS=0
round=0
jobs=0
while ((round == 0 || SECONDS < seconds)); do
    round=$((round + 1))
    for name in "${names[@]}"; do
        ((round == 1 || SECONDS < seconds)) || break
        if ((!direct_works)) && [[ "$name" == direct* ]]; then continue; fi
        read -ra extra < <(options "$name")
        mkdir -p -- "$folder/$name"
        command=("$uringlet" run -- fio --name="$name" --directory="$folder/$name"
            --randseed="$round" --verify_state_save=0
            "${common[@]}" "${extra[@]}")
        started=$SECONDS
        if ! timeout --kill-after=10 300 "${command[@]}" >"$folder/out" 2>&1; then
            printf 'FAILED %s, round %d\n' "$name" "$round"
            cat -- "$folder/out"
            printf 'again:'
            printf ' %q' "${command[@]}"
            printf '\n'
            exit 1
        fi
        rm -rf -- "${folder:?}/$name"
        jobs=$((jobs + 1))
        printf 'round %d %-16s ok, %d s\n' "$round" "$name" "$((SECONDS - started))"
    done
done
printf '%d jobs verified in %d s\n' "$jobs" "$SECONDS"
