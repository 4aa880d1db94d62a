#!/usr/bin/env bash
# Notes a test program for ci/test.sh, which runs it later: ci/later.sh PROGRAM [ARGUMENTS]
#
# Cargo calls this script in place of each test program. The script writes a file into
# $URINGLET_TEST_PROGRAMS, with the command and with cargo's environment and folder. Examples in
# documents run at once, because rustdoc removes their programs.
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
