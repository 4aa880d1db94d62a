#!/usr/bin/env bash
# Has fio write and verify through the drop-ins for a time: ci/soak.sh SECONDS [FOLDER]
#
# Rounds of jobs (buffered, direct, reaping from the ring, 16 threads, mixed sizes, POSIX AIO) until
# the time is over, at least one round. Stops at the first job that fails, or hangs for 5 minutes,
# and prints the command that repeats it.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
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
names=(buffered direct userspace_reap direct_reap threads mixed_sizes
    posix direct_posix posix_threads)
options() {
    case "$1" in
    buffered) echo --bs=4k --size=64M ;;
    direct) echo --bs=4k --size=64M --direct=1 ;;
    userspace_reap) echo --bs=4k --size=64M --userspace_reap ;;
    direct_reap) echo --bs=4k --size=64M --direct=1 --userspace_reap ;;
    threads) echo --bs=4k --size=8M --numjobs=16 --thread ;;
    mixed_sizes) echo --bsrange=512-128k --bs_unaligned --size=64M --iodepth_batch=8 --fsync=64 ;;
    # The last one counts.
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
