#!/usr/bin/env bash
# Compares MariaDB's rates natively and on the drop-ins, for libaio and io_uring:
# ci/mariadb-rates.sh [ROUNDS]
#
# Five servers, each with its own data, run at the same time. Two run natively, on Linux AIO and on
# io_uring. One runs on each of the two drop-ins, and one on the drop-in for io_uring with `--forbid
# docker`. sysbench's OLTP tests read only, and then update an index, on one server after the other,
# in ROUNDS (5) of LENGTH (5) seconds. The tables (ROWS, 400,000) are larger than the buffer pool of
# 64 MiB, and the files are opened with O_DIRECT. Prints medians of transactions per second, of the
# server's CPU time per transaction, and the ratio to the native side with its range. Fails if no
# request went through a drop-in.
#
# Installs what ci/mariadb.sh needs; sysbench must be installed. FOLDER is the folder for the data
# (target/ by default).
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
PATH="$PATH:/usr/sbin:/sbin"
"$root/ci/setup.sh" --mariadb
need sysbench
uringlet="$(uringlet_command)"
rounds="${1:-5}"
length="${LENGTH:-5}"
rows="${ROWS:-400000}"
mkdir -p -- "${FOLDER:-$target}"
folder="$(mktemp -d -- "$(cd -- "${FOLDER:-$target}" && pwd)/mariadb-XXXXXX")"
# The path of a socket must be short.
sockets="$(mktemp -d)"

stop() {
    local pid
    for pid in "$folder"/*/pid; do
        [[ ! -s "$pid" ]] || kill -TERM "$(cat -- "$pid")" 2>/dev/null || true
    done
    wait
}
trap 'stop; rm -rf -- "$folder" "$sockets"' EXIT

# Starts server $1 on its data in the background, and waits until it answers. $2 is its interface;
# the rest is the command that starts it.
start() {
    local name="$1" interface="$2" try
    shift 2
    "$@" mariadbd --no-defaults --user="$(id -un)" \
        --datadir="$folder/$name/data" --socket="$sockets/$name" --skip-networking \
        --pid-file="$folder/$name/pid" --log-error="$folder/$name/log" \
        --innodb-use-native-aio=1 --innodb-linux-aio="$interface" \
        --innodb-flush-method=O_DIRECT --innodb-buffer-pool-size=64M \
        --innodb-log-file-size=64M 2>"$folder/$name/errors" &
    for ((try = 0; try < 600; try++)); do
        if mariadb --no-defaults --socket="$sockets/$name" --user=root \
            --execute='SELECT 1' >/dev/null 2>&1; then
            return 0
        fi
        sleep 0.1
    done
    die "$name does not answer: $(tail -n 20 -- "$folder/$name/log" "$folder/$name/errors")"
}

bench() {
    local name="$1" test="$2" command="$3"
    sysbench --db-driver=mysql --mysql-socket="$sockets/$name" --mysql-user=root --mysql-db=d \
        --tables=4 --table-size="$((rows / 4))" --threads=8 --time="$length" "$test" "$command"
}

measure() {
    local name="$1" test="$2" server before said rate
    server="$(cat -- "$folder/$name/pid")"
    before="$(ticks "$server")"
    said="$(bench "$name" "$test" run)" || die "$name: $said"
    rate="$(sed -nE 's/^ +transactions: +[0-9]+ +\(([0-9.]+) per sec.*/\1/p' <<<"$said")"
    rate_and_time "$rate" "$(($(ticks "$server") - before))" "$length" >>"$folder/$test.$name"
}

# Prints a line that compares server $3 with the native server $2 in the test $1.
compare() {
    printf '%-18s %-14s ' "$1" "$3"
    print_ratio "$folder/$1.$2" "$folder/$1.$3"
}

mkdir -p -- "$folder/aio/data"
mariadb-install-db --no-defaults --datadir="$folder/aio/data" --user="$(id -un)" \
    --auth-root-authentication-method=normal --skip-test-db >"$folder/install" 2>&1 ||
    die "mariadb-install-db failed: $(cat -- "$folder/install")"
start aio aio env
mariadb --no-defaults --socket="$sockets/aio" --user=root --execute='CREATE DATABASE d'
bench aio oltp_read_only prepare >"$folder/prepare"
stop
for name in io_uring aio-ours io_uring-ours docker-ours; do
    mkdir -- "$folder/$name"
    cp -r -- "$folder/aio/data" "$folder/$name/data"
done
start aio aio env
start io_uring io_uring env
start aio-ours aio "$uringlet" run --
start io_uring-ours io_uring "$uringlet" run --io-uring always --
start docker-ours io_uring "$uringlet" run --forbid docker --
names=(aio aio-ours io_uring io_uring-ours docker-ours)
for test in oltp_read_only oltp_update_index; do
    for name in "${names[@]}"; do
        bench "$name" "$test" run >"$folder/warm" # The buffer pool is full from here on.
    done
    for ((round = 0; round < rounds; round++)); do
        for ((at = 0; at < ${#names[@]}; at++)); do
            measure "${names[(round % 2 ? ${#names[@]} - 1 - at : at)]}" "$test"
        done
    done
done
stop
! grep -h 'nothing went through it' "$folder"/*/errors || die "a side did not use its drop-in"
print_machine "$folder"
for test in oltp_read_only oltp_update_index; do
    compare "$test" aio aio-ours
    compare "$test" io_uring io_uring-ours
    compare "$test" io_uring docker-ours
done
