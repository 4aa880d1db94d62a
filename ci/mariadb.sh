#!/usr/bin/env bash
# Runs MariaDB on the drop-in for libaio, or for io_uring. Creates and fills a database, kills the
# server under load, restarts and checks it: ci/mariadb.sh [--io-uring [--forbid SANDBOX]] [FOLDER]
#
# Installs Debian's packages of the server if they are missing. Starts a server of its own, without
# network, in a scratch folder under FOLDER (target/ by default). The environment variable ENGINE
# names uringlet's engine (auto by default). Takes about half a minute.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
PATH="$PATH:/usr/sbin:/sbin"
interface=aio
says='Using Linux native AIO'
options=()
if [[ "${1-}" == --io-uring ]]; then
    interface=io_uring
    says='Using io_uring'
    shift
fi
if [[ "${1-}" == --forbid ]]; then
    options=(--forbid "${2:?--forbid: a sandbox}")
    shift 2
fi
"$root/ci/setup.sh" --mariadb
uringlet="$(uringlet_command)"
engine="${ENGINE:-auto}"
rows="${ROWS:-100000}"
mkdir -p -- "${1:-$target}"
folder="$(mktemp -d -- "$(cd -- "${1:-$target}" && pwd)/mariadb-XXXXXX")"
# The path of a socket must be short.
sockets="$(mktemp -d)"
server=
writer=

finish() {
    local pid
    for pid in "$writer" "$(cat -- "$folder/pid" 2>/dev/null || true)" "$server"; do
        [[ -z "$pid" ]] || kill -KILL "$pid" 2>/dev/null || true
    done
    wait
    rm -rf -- "$folder" "$sockets"
}
trap finish EXIT

fail() {
    tail -n 30 -- "$folder/log.err" "$folder"/summary.* 2>/dev/null || true
    die "$@"
}

sql() {
    mariadb --no-defaults --socket="$sockets/s" --user=root --batch --skip-column-names "$@"
}

# Starts the server in the background, and waits until it answers. $1 names its summary.
start() {
    rm -f -- "$folder/pid"
    "$uringlet" run --engine "$engine" --io-uring always --stats "${options[@]}" -- \
        mariadbd --no-defaults --user="$(id -un)" \
        --datadir="$folder/data" --socket="$sockets/s" --skip-networking \
        --pid-file="$folder/pid" --log-error="$folder/log.err" \
        --innodb-use-native-aio=1 --innodb-linux-aio="$interface" \
        --innodb-flush-method=O_DIRECT \
        --innodb-buffer-pool-size=16M --innodb-log-file-size=16M 2>"$folder/summary.$1" &
    server=$!
    local try
    for ((try = 0; try < 600; try++)); do
        if sql --execute='SELECT 1' >/dev/null 2>&1; then return 0; fi
        kill -0 "$server" 2>/dev/null || fail "the server ended ($1)"
        sleep 0.1
    done
    fail "the server does not answer ($1)"
}

# Checks that the server's requests went through uringlet, and that it reports the right interface.
went_through() {
    local count
    count="$(awk '$1 == "requests" { gsub(",", "", $2); print $2; exit }' "$folder/summary.$1")"
    [[ -n "$count" ]] && ((count >= $2)) ||
        fail "requests through uringlet ($1): ${count:-none}, expected $2 at least"
    grep -q "$says" "$folder/log.err" || fail "the server does not say: $says"
    printf '%-22s %s requests through uringlet, engine %s\n' "$1" "$count" "$engine"
}

mkdir -- "$folder/data"
mariadb-install-db --no-defaults --datadir="$folder/data" --user="$(id -un)" \
    --auth-root-authentication-method=normal --skip-test-db >"$folder/install" 2>&1 ||
    { cat -- "$folder/install"; die "mariadb-install-db failed"; }

start filled
sql <<SQL
CREATE DATABASE d;
USE d;
CREATE TABLE t (id INT PRIMARY KEY, k INT, text VARCHAR(400), KEY (k)) ENGINE=InnoDB;
INSERT INTO t SELECT seq, seq * 7919 % 100003, REPEAT(MD5(seq), 10) FROM seq_1_to_$rows;
UPDATE t SET k = k + 1 WHERE id % 3 = 0;
CREATE TABLE w (id INT AUTO_INCREMENT PRIMARY KEY, text VARCHAR(2000)) ENGINE=InnoDB;
SQL
before="$(sql d --execute='CHECKSUM TABLE t')"
# Inserts one row after the other. Each row is committed before its number is printed.
(
    # The loop below ends with a broken pipe when the server is killed, which is no failure.
    set +o pipefail
    while :; do
        printf "INSERT INTO w (text) VALUES (REPEAT('x', 1500)); SELECT LAST_INSERT_ID();\n"
    done |
        sql --unbuffered d >"$folder/committed" 2>/dev/null
) &
writer=$!
for ((try = 0; try < 600; try++)); do
    committed="$(grep -c . "$folder/committed" 2>/dev/null || true)"
    if ((${committed:-0} >= 500)); then break; fi
    sleep 0.1
done
kill -KILL "$(cat -- "$folder/pid")"
wait "$server" || true
wait "$writer" || true
writer=
# The last line may be cut off.
committed="$(grep -cE '^[0-9]+$' "$folder/committed" || true)"
((committed >= 500)) || fail "only $committed rows were written before the kill"
went_through filled 100

start restarted
grep -q 'Starting crash recovery' "$folder/log.err" ||
    fail "there was nothing to recover: the kill came too late"
[[ "$(sql d --execute='CHECKSUM TABLE t')" == "$before" ]] ||
    fail "the table is another one after the restart"
kept="$(sql d --execute='SELECT COUNT(*) FROM w')"
((kept >= committed)) || fail "$committed rows were committed, $kept are there"
checks="$(sql d --execute='CHECK TABLE t, w EXTENDED')"
[[ "$(awk '$NF == "OK"' <<<"$checks" | wc -l)" == 2 ]] || fail "CHECK TABLE: $checks"
kill -TERM "$(cat -- "$folder/pid")"
wait "$server" || fail "the server ended with $?"
server=
went_through restarted 100
printf 'tables are whole: %s rows, and %s of %s committed under the kill\n' \
    "$rows" "$kept" "$committed"
