#!/usr/bin/env bash
# Ports liburing's example programs that only read, write and wait to uringlet.h, and runs them:
# ci/liburing-examples.sh
#
# Fetches Debian's source package (nothing of it is kept in the repository). This script contains
# the changes of the ports: first the names, then everything else. Prints the number of lines that
# each of these steps changes. Fails if the second step changes more than a handful of lines, or if
# a port does not do what the original does.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
need sed
handful=20
cd -- "$root"
cargo build --quiet -p uringlet-capi
folder="${FOLDER:-$target/liburing-suite}"
mkdir -p -- "$folder"
fetch_liburing "$folder"
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
# Makes the same links as an installation.
ln -s -- "$target/debug/liburinglet_capi.so" "$work/liburinglet.so"
ln -s -- "$target/debug/liburinglet_capi.so" "$work/liburinglet.so.0"

# The same functions and structures under uringlet's names.
cat >"$work/names" <<'SED'
s/"liburing\.h"/"uringlet.h"/
s/io_uring_prep_/uringlet_prep_/g
s/io_uring_(get_sqe|submit|sqe_set_data)/uringlet_\1/g
s/struct io_uring_([sc]qe)/struct uringlet_\1/g
SED
# Differences beside the names: a context is a pointer, and completions are copied, so that programs
# do not give them back.
cat >"$work/changes" <<'SED'
s/^#include "uringlet\.h"/#include <errno.h>\n#include <linux\/fs.h>\n&/
/^static int setup_context/s/struct io_uring \*ring/struct uringlet **ring/
s/struct io_uring \*ring/struct uringlet *ring/
s/struct io_uring ring;/struct uringlet *ring;/
s/ret = io_uring_queue_init\((.*), (&?ring), 0\);/ret = uringlet_create(\2, \&with); OPTIONS \1/
s/^(\t*)(.*) OPTIONS (.*)/\1struct uringlet_options with = {sizeof with, .entries = \3};\n\1\2/
s/struct uringlet_cqe \*cqe;/struct uringlet_cqe one, *cqe = \&one;/
s/ret = io_uring_wait_cqe\(&?ring, &cqe\);/ret = uringlet_wait(ring, 1, -1) > 0 ? 0 : -EIO; PEEK/
s/^(\t*)(.*) PEEK/\1\2\n\1uringlet_peek(ring, cqe = \&one, 1);/
s/io_uring_peek_cqe\(ring, &cqe\)/uringlet_peek(ring, cqe = \&one, 1) == 1 ? 0 : -EAGAIN/
/io_uring_cqe_seen\(/d
s/io_uring_cqe_get_data\(cqe\)/(void *)(uintptr_t)cqe->user_data/
s/io_uring_queue_exit\(&ring\)/uringlet_destroy(ring, -1)/
s/(uringlet_get_sqe|uringlet_submit|copy_file)\(&ring/\1(ring/
SED

head -c 10000000 /dev/urandom >"$work/from"
for name in io_uring-test io_uring-cp; do
    original="$folder/source/examples/$name.c"
    sed -E -f "$work/names" "$original" >"$work/renamed.c"
    sed -E -f "$work/changes" "$work/renamed.c" >"$work/$name.c"
    renamed="$(diff "$original" "$work/renamed.c" | grep -c '^>' || true)"
    changed="$(diff "$work/renamed.c" "$work/$name.c" | grep -c '^[<>]' || true)"
    only="$(diff "$work/renamed.c" "$work/$name.c" | grep -c '^>' || true)"
    gone=$((changed - only))
    changed=$((only > gone ? only : gone))
    cc -O2 -w -D_GNU_SOURCE -Icapi/include -o "$work/$name" "$work/$name.c" \
        -L"$work" -luringlet -Wl,-rpath,"$work"
    printf '%s.c: %d lines; %d have other names, and %d are different\n' "$name" \
        "$(wc -l <"$original")" "$renamed" "$changed"
    ((changed <= handful)) || die "$name: $changed lines are more than a handful ($handful)"
done
"$work/io_uring-test" "$work/from" | tee "$work/said"
grep -qx 'Submitted=4, completed=4, bytes=16384' "$work/said" || die "io_uring-test: not all read"
"$work/io_uring-cp" "$work/from" "$work/to"
cmp -- "$work/from" "$work/to"
echo 'io_uring-cp: copied 10000000 bytes'
for name in link-cp poll-bench ucontext-cp io_uring-udp send-zerocopy; do
    echo "SKIPPED $name: links, polls, timeouts or sockets; the drop-in for liburing is for such"
done
