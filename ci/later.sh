#!/usr/bin/env bash
# Notes a program of tests for ci/test.sh, which runs it later: ci/later.sh PROGRAM [ARGUMENTS]
#
# Cargo calls it in place of each program. The note has the environment and the folder that cargo
# gives it, and stands in $URINGLET_TEST_PROGRAMS. Examples in documents run at once: rustdoc
# removes their programs.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
[[ "$1" == */deps/* ]] || exec "$@"
shopt -s nullglob
notes=("${URINGLET_TEST_PROGRAMS:?a folder}"/*)
note="$(printf '%s/%03d %s %s' "$URINGLET_TEST_PROGRAMS" "${#notes[@]}" "${PWD##*/}" "${1##*/}")"
{
    export -p
    printf 'cd -- %q\nexec' "$PWD"
    printf ' %q' "$@"
    echo
} >"$note"
