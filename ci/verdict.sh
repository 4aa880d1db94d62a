#!/usr/bin/env bash
# Checks how far the verdicts of `uringlet bench` can be trusted on this machine: ci/verdict.sh
# repeat|burner|same FOLDER [RUNS]
#
#   repeat FOLDER [10]  runs the default bench RUNS times. Takes the cells that any run calls faster
#                       or slower. The class of such a cell has to be the same in 95 of 100 pairs of
#                       runs. At most a quarter of the classes may be unknown.
#   burner FOLDER [10]  does the same beside a process that keeps a CPU busy. Any number of classes
#                       may be unknown.
#   same   FOLDER [20]  compares psync with psync under another name. At most 5 % of the cells may
#                       be called faster or slower.
#
# BUDGET (90s) is the time of each run; BENCH is added to its command line. Results stay in OUT, if
# OUT is set. The exit status is 1 if one of these bounds is missed.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
what="${1-}"
folder="${2-}"
[[ "$what" =~ ^(repeat|burner|same)$ ]] || die "repeat, burner or same? (--help)"
[[ -d "$folder" ]] || die "in which folder? (--help)"
runs="${3-$([[ "$what" == same ]] && echo 20 || echo 10)}"
[[ "$runs" =~ ^[0-9]+$ && "$runs" -gt 1 ]] || die "RUNS is $runs, expected a number from 2 on"
need jq
uringlet="$(uringlet_command)"
out="${OUT-}"
burner=
finish() {
    [[ -z "$burner" ]] || kill "$burner" 2>/dev/null || true
    [[ -n "${OUT-}" || -z "$out" ]] || rm -rf -- "$out"
}
trap finish EXIT
[[ -n "$out" ]] || out="$(mktemp -d)"
mkdir -p -- "$out"

if [[ "$what" == burner ]]; then
    (while :; do :; done) &
    burner=$!
fi
read -ra more <<<"${BENCH-}"
[[ "$what" != same ]] || more+=(--engines "psync,psync-again")
for ((run = 1; run <= runs; run++)); do
    "$uringlet" bench --file "$folder" --budget "${BUDGET-90s}" --seed "$run" "${more[@]}" \
        --json "$out/$run.json" >"$out/$run.txt"
    printf '%s: run %d of %d: %s\n' \
        "$what" "$run" "$runs" "$(grep -m 1 '^Of ' "$out/$run.txt" || echo 'no figures')"
done

# Computes the shares from the class of every cell in every run, separately for rates and CPU time.
summary="$(jq -s '
    def two: . as $all | range(length) as $a | range($a + 1; $all | length) as $b
        | [$all[$a], $all[$b]];
    def agreement($names): map(select(any(IN($names[])))) as $cells
        | {cells: ($cells | length), pairs: ([$cells[] | two] | length),
           same: ([$cells[] | two | select(.[0] == .[1])] | length)};
    def share($names): flatten | if length == 0 then 0
        else (map(select(IN($names[]))) | length) / length end;
    def classes(of): [.[] | [.lines[] | .comparison | if . == null
        then null else of end]] | transpose
        | map(select(all(. != null)));
    (classes(.class)) as $rate | (classes(.cpu.class)) as $cpu
    | {rate: ($rate | agreement(["faster", "slower"])),
        cpu: ($cpu | agreement(["cheaper", "dearer"])),
       differs: ($rate | share(["faster", "slower"])),
           cpu_differs: ($cpu | share(["cheaper", "dearer"])),
       unknown: ($rate | share(["unknown"])), outside: ([.[].summary.outside] | add / length)}
' "$out"/[0-9]*.json)"
jq . <<<"$summary"
case "$what" in
same) jq -e '.differs <= 0.05 and .cpu_differs <= 0.05' >/dev/null <<<"$summary" ;;
repeat) jq -e '.rate.same >= 0.95 * .rate.pairs and .unknown <= 0.25' >/dev/null <<<"$summary" ;;
burner) jq -e '.rate.same >= 0.95 * .rate.pairs' >/dev/null <<<"$summary" ;;
esac
