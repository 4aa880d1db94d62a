#!/usr/bin/env bash
# Runs PostgreSQL 18 on the drop-in for io_uring. Creates, fills and scans a database, kills the
# server under load, restarts and checks it:
# ci/postgresql.sh [--method METHOD] [--forbid SANDBOX] [--rates ROUNDS | --regression]
#
# With --regression, PostgreSQL's own regression tests run instead.
# With --rates, nothing is killed. Cold scans and transactions are measured in turn with
# PostgreSQL's own workers, with the kernel's io_uring, and with the drop-in in the sandbox.
#
# METHOD is PostgreSQL's io_method (io_uring by default), SANDBOX the sandbox that refuses io_uring
# (docker by default). Needs root and debootstrap: PostgreSQL comes from Debian's newest suite, into
# a root file system in target/postgresql, which is made once. SCALE is pgbench's scale factor (20
# by default: two million rows), and SECONDS_OF_LOAD the duration of a load. A backend is killed
# KILLS times, and the whole server CRASHES times. OPTIONS are further settings of the server, such
# as debug_io_direct=data. ENGINE is uringlet's engine. Takes about five minutes.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
PATH="$PATH:/usr/sbin:/sbin"
method=io_uring
sandbox=docker
rounds=
regression=
while (($# > 0)); do
    case "$1" in
    --method) method="${2:?--method: io_uring, worker or sync}" ;;
    --forbid) sandbox="${2:?--forbid: a sandbox}" ;;
    --rates) rounds="${2:?--rates: how many rounds}" ;;
    --regression)
        regression=1
        shift
        continue
        ;;
    *) die "unknown argument $1 (--help)" ;;
    esac
    shift 2
done
((EUID == 0)) || die "root only: it makes a file system and changes into it"
setup=--packages need debootstrap
uringlet="$(uringlet_command)"
engine="${ENGINE:-auto}"
base="$target/postgresql/debian-sid"
programs=/usr/lib/postgresql/18/bin
before=(/opt/uringlet/uringlet run --engine "$engine" --forbid "$sandbox" --stats --)
place=/var/lib/uringlet
folder="$base$place"
server=
load=

# Runs a command as the user who owns the data.
inside() {
    chroot "$base" /usr/bin/env -i HOME="$place" PATH="$programs:/usr/bin:/bin" PGHOST="$place" \
        PGDATABASE=postgres setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"
}

unmounted() {
    umount "$base/proc" "$base/dev/shm" "$base/dev" 2>/dev/null || true
}

make_base() {
    [[ ! -e "$base/complete" ]] || return 0
    rm -rf -- "$base"
    debootstrap --variant=minbase sid "$base"
    umount "$base/proc" 2>/dev/null || true
    mkdir -p -- "$base/etc/postgresql-common"
    echo 'create_main_cluster = false' >"$base/etc/postgresql-common/createcluster.conf"
    # Prevents services from starting.
    printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
    chmod +x -- "$base/usr/sbin/policy-rc.d"
    mount -t proc none "$base/proc"
    chroot "$base" /usr/bin/env -i DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin apt-get install -y --no-install-recommends postgresql-18
    umount "$base/proc"
    touch -- "$base/complete"
}

# Fetches the regression tests, and builds the library that they load.
make_regression() {
    local include tests="$base/opt/regress"
    [[ ! -e "$tests/complete" ]] || return 0
    need curl
    chroot "$base" /usr/bin/env -i DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin apt-get install -y --no-install-recommends \
        postgresql-server-dev-18 gcc libc6-dev
    fetch_original "$target/postgresql" postgresql-18 sid
    mkdir -p -- "$tests"
    tar -xf "$target/postgresql/source.tar" -C "$tests" --strip-components=4 --wildcards \
        '*/src/test/regress/*'
    include="$(chroot "$base" "$programs/pg_config" --includedir-server)"
    chroot "$base" gcc -O1 -fPIC -shared -I"$include" -o /opt/regress/regress.so \
        /opt/regress/regress.c
    touch -- "$tests/complete"
}

# Runs the regression tests on the server.
run_regression() {
    local files=/opt/regress
    inside sh -c "cd $files && /usr/lib/postgresql/18/lib/pgxs/src/test/regress/pg_regress \
        --inputdir=$files --outputdir=$place/out --bindir=$programs --dlpath=$files \
        --max-concurrent-tests=20 --schedule=$files/parallel_schedule" | grep -v '^ok' ||
        { cat -- "$folder/out/regression.diffs" >&2 && fail "a regression test has failed"; }
}

# Prints the process ID that is in the server's file.
postmaster() {
    head -n 1 -- "$folder/data/postmaster.pid" 2>/dev/null || true
}

finish() {
    local pid
    for pid in "$load" "$(postmaster)" "$server"; do
        [[ -z "$pid" ]] || kill -KILL "$pid" 2>/dev/null || true
    done
    wait
    rm -rf -- "$folder"
    unmounted
}

fail() {
    tail -n 30 -- "$folder/log" >&2 || true
    die "$@"
}

sql() {
    inside psql -AtXq -c "$1"
}

# Starts the server in the background, and waits until it answers.
start() {
    local try
    # Processes of a killed server may go on for a moment, and keep a new server from starting.
    for ((try = 0; try < 100; try++)); do
        if [[ -n "$server" ]] && kill -0 "$server" 2>/dev/null; then
            if inside pg_isready -q; then return 0; fi
        else
            inside sh -c "exec ${before[*]} postgres -D $place/data -c io_method=$method \
                >>$place/log 2>&1" &
            server=$!
        fi
        sleep 0.3
    done
    fail "the server does not answer"
}

stop() {
    kill -INT "$(postmaster)"
    wait "$server" || fail "the server ended with $?"
    server=
}

# Runs transactions of eight clients without end, and begins again whenever the server was killed.
load_on() {
    while :; do
        inside pgbench -n -c 8 -T 600 >/dev/null 2>&1 || sleep 0.1
    done &
    load=$!
}

load_off() {
    kill "$load"
    wait "$load" 2>/dev/null || true
    load=
    inside sh -c 'for p in /proc/[0-9]*; do
        [ "$(cat $p/comm 2>/dev/null)" != pgbench ] || kill "${p#/proc/}"; done' || true
}

# Prints the ID of a process of the server that serves a client.
backend() {
    local pid
    for pid in $(pgrep -P "$(postmaster)" | shuf); do
        if grep -qa 'postgres: postgres postgres' "/proc/$pid/cmdline" 2>/dev/null; then
            echo "$pid"
            return 0
        fi
    done
}

# Checks that each transaction of pgbench was done completely or not at all: the balances have to
# match the history.
whole() {
    local sums
    sums="$(sql 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = s
        AND (SELECT sum(bbalance) FROM pgbench_branches) = s
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = s
        FROM (SELECT coalesce(sum(delta), 0) AS s FROM pgbench_history) AS h')"
    [[ "$sums" == t ]] || fail "balances differ from the history: $sums"
}

# Sets `used` to the CPU seconds of the processes that the script has waited for.
count_used() {
    times >"$folder/times"
    used="$(awk 'NR == 2 { gsub("[ms]", " "); print $1 * 60 + $2 + $3 * 60 + $4 }' "$folder/times")"
}

# Prints the transactions per second of eight clients: transactions OPTIONS OF pgbench
transactions() {
    inside pgbench -n -c 8 -T "${SECONDS_OF_LOAD:-30}" "$@" | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}

# Prints the rates of the side $1: seconds of two cold scans, transactions per second (first of
# read-only ones, then of pgbench's default ones), and the server's CPU time in seconds.
rates_of() {
    local begin end before_it used reads writes
    start
    begin="$(date +%s.%N)"
    for query in 'sum(abalance) FROM pgbench_accounts' \
        'sum(aid) FROM pgbench_accounts WHERE aid % 7 = 0'; do
        # Only pages that are written back are dropped.
        sync
        echo 3 >/proc/sys/vm/drop_caches
        sql "SELECT $query" >/dev/null
    done
    end="$(date +%s.%N)"
    reads="$(transactions -S)"
    writes="$(transactions)"
    count_used
    before_it="$used"
    stop
    count_used
    printf '%-20s scans %6.2f s; %8.1f reads, %8.1f transactions a second; %7.2f s of CPU time\n' \
        "$1" "$(bc <<<"$end - $begin")" "$reads" "$writes" "$(bc <<<"$used - $before_it")"
}

compare_rates() {
    local round through=("${before[@]}")
    for ((round = 1; round <= rounds; round++)); do
        before=() method=worker
        rates_of "worker"
        before=() method=io_uring
        rates_of "io_uring, natively"
        before=("${through[@]}")
        rates_of "io_uring, $sandbox"
    done
}

# Checks that the server has not panicked. With io_uring as the method, also checks that its reads
# went through uringlet.
requests_through() {
    local requests
    ! grep -q PANIC "$folder/log" || fail "the server panicked"
    requests="$(awk '$1 == "requests" { gsub(",", "", $2); print $2; exit }' "$folder/log")"
    if [[ "$method" == io_uring ]]; then
        [[ -n "$requests" ]] && ((requests >= 100)) ||
            fail "requests through uringlet: ${requests:-none}"
    fi
    echo "$method inside of $sandbox: ${requests:-no} requests through uringlet"
}

make_base
trap finish EXIT
rm -rf -- "$folder"
mount -t proc none "$base/proc"
[[ -z "$regression" ]] || make_regression
mount --bind /dev "$base/dev"
mount --bind /dev/shm "$base/dev/shm"
mkdir -p -- "$base/opt/uringlet" "$folder"
cp -- "$uringlet" "$(dirname -- "$uringlet")"/{libaio,libposix_aio,liburing}.so "$base/opt/uringlet"
chroot "$base" chown postgres "$place"
inside initdb -D "$place/data" -A trust >/dev/null
cat >>"$folder/data/postgresql.conf" <<CONFIGURATION
listen_addresses = ''
unix_socket_directories = '$place'
shared_buffers = 32MB
max_wal_size = 256MB
CONFIGURATION
for option in ${OPTIONS-}; do
    echo "$option" >>"$folder/data/postgresql.conf"
done

start
[[ "$(sql 'SHOW io_method')" == "$method" ]] || fail "another io_method is in force"
if [[ -n "$regression" ]]; then
    inside mkdir "$place/out"
    run_regression
    stop
    requests_through
    exit
fi
inside pgbench -i -q -s "${SCALE:-20}" 2>/dev/null
if [[ -n "$rounds" ]]; then
    stop
    compare_rates
    exit
fi
for query in 'SELECT count(*), sum(abalance) FROM pgbench_accounts' 'VACUUM (ANALYZE)' \
    'SELECT count(*), sum(aid) FROM pgbench_accounts'; do
    sql "$query"
done
inside pgbench -n -c 8 -T "${SECONDS_OF_LOAD:-30}" | grep -E '^(tps|number of)'
whole
stop
requests_through
inside pg_checksums --check -D "$place/data" | grep -E '^(Bad checksums|Blocks scanned)'

start
load_on
for ((kills = 0; kills < ${KILLS:-20}; )); do
    sleep "0.$((RANDOM % 8 + 1))"
    pid="$(backend)"
    [[ -n "$pid" ]] || continue
    kill -KILL "$pid" 2>/dev/null || continue
    kills=$((kills + 1))
    for ((try = 0; try < 200; try++)); do
        if sql 'SELECT 1' >/dev/null 2>&1; then break; fi
        sleep 0.1
    done
    ((try < 200)) || fail "the server does not recover from the kill of a backend"
done
for ((crashes = 0; crashes < ${CRASHES:-10}; crashes++)); do
    sleep "0.$((RANDOM % 8 + 1))"
    kill -KILL "$(postmaster)"
    wait "$server" || true
    server=
    start
done
load_off
whole
stop
inside pg_checksums --check -D "$place/data" | grep -E '^Bad checksums'
echo "whole after $kills kills of a backend and $crashes of the server"
