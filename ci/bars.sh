#!/usr/bin/env bash
# Measures with fio what the libaio drop-in is worth, against the bars set for it:
# ci/bars.sh depth|paced|cold|contexts DIR
#
#   depth DIR   buffered random writes of 1 KiB to 10 MB, depths 1 to 32: psync, libaio, io_uring,
#               uringlet, and the least that any drop-in can do on one CPU (ci/least.c)
#   paced DIR   the same at 1000 per second, depths 1 and 8: CPU time of all threads, libaio and
#               uringlet
#   contexts DIR  mixed reads and writes of 1 KiB at depth 1, 256 KiB per job, 1 to 512 jobs with a
#               thread and a context each (published: Linux AIO's lookup, 2013): elapsed time with
#               libaio, psync and uringlet
#   cold  DIR   buffered random reads of 4 KiB from 2 GB that are not cached, depth 32: libaio,
#               io_uring and uringlet
#
# Rounds are interleaved and begin with another engine each; the table shows medians. Exit status 1:
# a bar is missed. ROUNDS (5; all but depth 3), RUNTIME (2 s; paced 10, cold 5), DEPTHS, JOBS and
# LOOPS change the size of it.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
what="${1-}"
folder="${2-}"
[[ "$what" =~ ^(depth|paced|cold|contexts)$ ]] || die "depth, paced, cold or contexts? (--help)"
[[ -d "$folder" ]] || die "in which folder? (--help)"
need fio
uringlet="$(uringlet_command)"
scratch="$(mktemp -d -- "$folder/bars-XXXXXX")"
trap 'rm -rf -- "$scratch"' EXIT
data="$scratch/data"
results="$scratch/results"
: >"$results"

need_space() {
    local free
    free="$(df --output=avail -k -- "$scratch" | tail -n 1)"
    ((free > $1 * 1024)) || die "$folder has $((free / 1024)) MB free, $1 MB are needed"
}

# fio's arguments for an engine; ours is libaio with a drop-in in front.
engine_of() {
    if [[ "$1" == uringlet || "$1" == least ]]; then echo libaio; else echo "$1"; fi
}

# Runs fio on an engine; leaves the IOPS of reads and writes together in $iops and the CPU seconds
# in $cpu.
measure() {
    local engine="$1" front=() TIMEFORMAT='%3U %3S'
    shift
    [[ "$engine" != uringlet ]] || front=("$uringlet" run --)
    [[ "$engine" != least ]] || front=(env "LD_PRELOAD=$scratch/least.so")
    local status=0
    {
        time "${front[@]}" fio --name=bars --filename="$data" --ioengine="$(engine_of "$engine")" \
            --time_based --runtime="$runtime" --output-format=terse --terse-version=3 "$@" \
            >"$scratch/out" 2>"$scratch/err" || status=$?
    } 2>"$scratch/time"
    iops="$(awk -F';' '$1 == 3 { sum += $8 + $49; n++ } END { if (n) print sum }' "$scratch/out")"
    cpu="$(awk '{ print $1 + $2 }' "$scratch/time")"
    if ((status)) || [[ -z "$iops" || "$iops" == 0 ]]; then
        if [[ "$engine" == uringlet || "$engine" == libaio ]]; then
            cat -- "$scratch/err" "$scratch/out" >&2
            die "fio failed with $engine"
        fi
        iops=
    fi
}

# The engines, another one first in each round.
rotated() {
    local by="$1" n i
    shift
    n=$#
    local all=("$@")
    for ((i = 0; i < n; i++)); do
        echo "${all[(i + by) % n]}"
    done
}

# Median of the figures of one cell; empty if there is none.
median() {
    awk -v key="$1" '$1 == key { print $2 }' "$results" | sort -g |
        awk '
            { v[NR] = $1 }
            END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

missed=0
# "ratio (bar: met or MISSED)"; for `most` a smaller ratio is the better one.
verdict() {
    local ours="$1" theirs="$2" bar="${3-}" sense="${4:-least}"
    if [[ -z "$ours" || -z "$theirs" ]]; then
        echo "n/a"
        return
    fi
    awk -v a="$ours" -v b="$theirs" -v bar="$bar" -v sense="$sense" 'BEGIN {
        r = b > 0 ? a / b : 0
        met = sense == "most" ? r <= bar : r >= bar
        printf "%.2fx", r
        if (bar != "") printf " (%s %s: %s)", sense, bar, met ? "met" : "MISSED"
        print ""
    }'
}

note() {
    [[ "$1" != *MISSED* ]] || missed=1
}

thousands() {
    if [[ -z "$1" ]]; then echo n/a; else awk -v n="$1" 'BEGIN { printf "%.1fk\n", n / 1000 }'; fi
}

prepare() {
    need_space "$(($1 + 64))"
    fio --name=prepare --filename="$data" --rw=write --bs=1M --size="$1M" \
        --ioengine=psync --end_fsync=1 --output="$scratch/out" ||
        die "cannot write $1 MB to $folder"
}

progress() {
    if [[ -t 2 ]]; then printf '\r%-60s' "$*" >&2; fi
}

job=(--rw=randwrite --bs=1k --size=10M)

depth() {
    rounds="${ROUNDS:-5}" runtime="${RUNTIME:-2}"
    local depths="${DEPTHS:-1 2 4 8 16 32}" round depth engine
    prepare 10
    need cc
    cc -O2 -shared -fPIC -o "$scratch/least.so" "$(dirname -- "${BASH_SOURCE[0]}")/least.c"
    for ((round = 0; round < rounds; round++)); do
        for depth in $depths; do
            while read -r engine; do
                # One call at a time: a depth means nothing to it.
                if [[ "$engine" == psync && "$depth" != 1 ]]; then continue; fi
                progress "round $((round + 1)) of $rounds, depth $depth, $engine"
                measure "$engine" "${job[@]}" --iodepth="$depth"
                [[ -z "$iops" ]] || echo "$depth/$engine $iops" >>"$results"
            done < <(rotated "$round" psync libaio io_uring uringlet least)
        done
    done
    progress ""
    local psync_bar ring_bar
    printf '\n%-6s %9s %9s %9s %9s %9s   %-24s %-24s %-24s %-8s %s\n' \
        depth psync libaio io_uring least uringlet \
        'to libaio' 'to io_uring' 'to psync' 'to least' 'least to libaio'
    for depth in $depths; do
        local psync libaio ring ours least to_libaio to_ring to_psync
        psync="$(median 1/psync)" libaio="$(median "$depth/libaio")"
        ring="$(median "$depth/io_uring")" ours="$(median "$depth/uringlet")"
        least="$(median "$depth/least")"
        psync_bar='' ring_bar=1.0
        if ((depth == 1)); then psync_bar=0.8; fi
        # The tenfold is ext4's: there io_uring hands each write to a kernel thread.
        if [[ "$(file_system "$scratch")" == tmpfs ]]; then
            ring_bar=''
        elif ((depth == 1)); then
            ring_bar=10
        fi
        to_libaio="$(verdict "$ours" "$libaio" 1.3)"
        to_ring="$(verdict "$ours" "$ring" "$ring_bar")"
        to_psync="$(verdict "$ours" "$psync" "$psync_bar")"
        note "$to_libaio$to_ring$to_psync"
        printf '%-6s %9s %9s %9s %9s %9s   %-24s %-24s %-24s %-8s %s\n' "$depth" \
            "$(thousands "$psync")" "$(thousands "$libaio")" "$(thousands "$ring")" \
            "$(thousands "$least")" "$(thousands "$ours")" "$to_libaio" "$to_ring" "$to_psync" \
            "$(verdict "$ours" "$least")" "$(verdict "$least" "$libaio")"
    done
}

paced() {
    rounds="${ROUNDS:-3}" runtime="${RUNTIME:-10}"
    local depths="${DEPTHS:-1 8}" round depth engine
    prepare 10
    for ((round = 0; round < rounds; round++)); do
        for depth in $depths; do
            while read -r engine; do
                progress "round $((round + 1)) of $rounds, depth $depth, $engine"
                measure "$engine" "${job[@]}" --iodepth="$depth" --rate_iops=1000
                echo "$depth/$engine/cpu $cpu" >>"$results"
                echo "$depth/$engine/iops $iops" >>"$results"
            done < <(rotated "$round" libaio uringlet)
        done
    done
    progress ""
    printf '\n%-6s %14s %14s %14s %14s   %s\n' \
        depth 'libaio CPU s' 'uringlet CPU s' 'libaio IOPS' 'uringlet IOPS' 'CPU time to libaio'
    for depth in $depths; do
        local libaio ours ratio
        libaio="$(median "$depth/libaio/cpu")" ours="$(median "$depth/uringlet/cpu")"
        ratio="$(verdict "$ours" "$libaio" 1.5 most)"
        note "$ratio"
        printf '%-6s %14s %14s %14s %14s   %s\n' "$depth" "$libaio" "$ours" \
            "$(median "$depth/libaio/iops")" "$(median "$depth/uringlet/iops")" "$ratio"
    done
}

cold() {
    rounds="${ROUNDS:-3}" runtime="${RUNTIME:-5}"
    local round engine size="${SIZE_MB:-2048}"
    [[ "$(file_system "$scratch")" != tmpfs ]] ||
        die "$folder is in memory: nothing there is ever cold"
    prepare "$size"
    for ((round = 0; round < rounds; round++)); do
        while read -r engine; do
            progress "round $((round + 1)) of $rounds, $engine"
            measure "$engine" --rw=randread --bs=4k --size="${size}M" --iodepth=32 --direct=0 \
                --invalidate=1
            [[ -z "$iops" ]] || echo "cold/$engine $iops" >>"$results"
        done < <(rotated "$round" libaio io_uring uringlet)
    done
    progress ""
    local libaio ring ours to_libaio
    libaio="$(median cold/libaio)" ring="$(median cold/io_uring)" ours="$(median cold/uringlet)"
    to_libaio="$(verdict "$ours" "$libaio" 2.5)"
    note "$to_libaio"
    printf '\n%9s %9s %9s   %-26s %s\n' libaio io_uring uringlet 'to libaio' 'to io_uring'
    printf '%9s %9s %9s   %-26s %s\n' \
        "$(thousands "$libaio")" "$(thousands "$ring")" "$(thousands "$ours")" "$to_libaio" \
        "$(verdict "$ours" "$ring")"
}

contexts() {
    rounds="${ROUNDS:-3}"
    local counts="${JOBS:-1 8 64 512}" round jobs engine loops ms
    need_space 256
    for ((round = 0; round < rounds; round++)); do
        for jobs in $counts; do
            # About as many requests in all, and at least a few loops of each job.
            loops="${LOOPS:-$((2048 / jobs > 20 ? 2048 / jobs : 20))}"
            while read -r engine; do
                progress "round $((round + 1)) of $rounds, $jobs jobs, $engine"
                local front=()
                [[ "$engine" != uringlet ]] || front=("$uringlet" run --)
                "${front[@]}" fio --name=job --directory="$scratch" \
                    --ioengine="$(engine_of "$engine")" --rw=randrw --size=256k --bs=1k \
                    --iodepth=1 --thread --numjobs="$jobs" --loops="$loops" --group_reporting \
                    --output-format=terse --terse-version=3 >"$scratch/out" 2>"$scratch/err" ||
                    { cat -- "$scratch/err" >&2; die "fio failed with $engine"; }
                # The longest of the jobs' times, without fio's own start.
                ms="$(awk -F';' '
                    $1 == 3 { t = $9 > $50 ? $9 : $50; if (t > ms) ms = t }
                    END { print ms }' "$scratch/out")"
                echo "$jobs/$engine $ms" >>"$results"
            done < <(rotated "$round" psync libaio uringlet)
        done
    done
    progress ""
    local ours libaio ratio
    printf '\n%-6s %10s %10s %12s   %-24s %s\n' \
        jobs 'psync ms' 'libaio ms' 'uringlet ms' 'time to libaio' 'psync to libaio'
    for jobs in $counts; do
        ours="$(median "$jobs/uringlet")" libaio="$(median "$jobs/libaio")"
        ratio="$(verdict "$ours" "$libaio" 0.8 most)"
        note "$ratio"
        printf '%-6s %10s %10s %12s   %-24s %s\n' \
            "$jobs" "$(median "$jobs/psync")" "$libaio" "$ours" "$ratio" \
            "$(verdict "$(median "$jobs/psync")" "$libaio")"
    done
}

print_machine "$scratch"
case "$what" in
depth) depth ;;
paced) paced ;;
cold) cold ;;
contexts) contexts ;;
esac
((missed == 0)) || echo "a bar is missed"
exit "$missed"
