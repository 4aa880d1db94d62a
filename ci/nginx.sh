#!/usr/bin/env bash
# Serves files by nginx, natively and on the drop-in for libaio, and compares the requests a
# second: ci/nginx.sh [ROUNDS]
#
# Fetches Debian's source package of nginx and builds it with --with-file-aio, which Debian's own
# build leaves out. Nothing of it is kept in the repository. 64 files of 1 MiB are read with `aio
# on; directio 512`, by 8 connections of wrk on the loopback (PORT, 18741 by default). Both sides
# take turns: ROUNDS (5) of LENGTH (3) seconds each. FORBID is the sandbox of the drop-in's side
# (none by default). FOLDER is for the sources and the files (target/nginx by default). Prints
# medians, CPU time for each request, and the ratio with its range. Fails if a response has another
# status than 200, or if nothing went through the drop-in.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
need cc
need curl
need make
need wrk
uringlet="$(uringlet_command)"
folder="${FOLDER:-$target/nginx}"
rounds="${1:-5}"
seconds="${LENGTH:-3}"
mkdir -p -- "$folder"
folder="$(cd -- "$folder" && pwd)"

if [[ ! -x "$folder/nginx" ]]; then
    list_sources "$folder"
    rm -rf -- "$folder/fetch"
    mkdir -- "$folder/fetch"
    (cd -- "$folder/fetch" && apt-get "${apt_options[@]}" source -qq --download-only nginx)
    tar -xf "$folder/fetch"/nginx_*.orig.tar.* -C "$folder/fetch"
    (cd -- "$folder/fetch"/nginx-*/ && ./configure --with-file-aio --without-http_rewrite_module \
        --without-http_gzip_module && make -j "$(nproc)") >"$folder/build.log" 2>&1 ||
        die "nginx cannot be built: $folder/build.log"
    cp -- "$folder/fetch"/nginx-*/objs/nginx "$folder/nginx"
fi
run="$(mktemp -d -- "$folder/run-XXXXXX")"

finish() {
    # Ends the server, or `uringlet run`, which passes the signal on to the server.
    jobs -p | xargs -r kill 2>/dev/null || true
    wait
    rm -rf -- "$run"
}
trap finish EXIT

mkdir -- "$run/files"
for ((file = 0; file < 64; file++)); do
    head -c 1048576 /dev/urandom >"$run/files/$file"
done
cat >"$run/nginx.conf" <<EOF
user $(id -un) $(id -gn);
daemon off;
worker_processes 1;
pid $run/pid;
error_log $run/error warn;
events { worker_connections 512; }
http {
    access_log off;
    aio on;
    directio 512;
    output_buffers 1 128k;
    client_body_temp_path $run/body;
    proxy_temp_path $run/proxy;
    fastcgi_temp_path $run/fastcgi;
    uwsgi_temp_path $run/uwsgi;
    scgi_temp_path $run/scgi;
    server { listen 127.0.0.1:${PORT:-18741}; root $run/files; }
}
EOF
cat >"$run/wrk.lua" <<'EOF'
local n = 0
request = function()
    n = (n + 37) % 64
    return wrk.format("GET", "/" .. n)
end
EOF
address="http://127.0.0.1:${PORT:-18741}"

# Serves for LENGTH seconds, natively or on the drop-in ($1: native or ours). Prints requests per
# second, and µs of CPU time per request.
measure() {
    local side="$1" server before after said rate try
    local command=("$folder/nginx" -p "$run" -c "$run/nginx.conf")
    if [[ "$side" == ours ]]; then
        command=("$uringlet" run --stats ${FORBID:+--forbid "$FORBID"} -- "${command[@]}")
    fi
    rm -f -- "$run/pid"
    "${command[@]}" 2>"$run/stats" &
    for ((try = 0; try < 100; try++)); do
        ! curl -fs -m 5 -o /dev/null "$address/0" || break
        sleep 0.1
    done
    server="$(cat -- "$run/pid")" || die "nginx did not start: $(cat -- "$run/stats" "$run/error")"
    before="$(ticks "$server")"
    said="$(wrk -t 1 -c 8 -d "$seconds" -s "$run/wrk.lua" "$address")"
    after="$(ticks "$server")"
    kill -QUIT "$server"
    wait
    if grep -qE 'Non-2xx|Socket errors' <<<"$said"; then
        die "$side: $said"
    fi
    if [[ "$side" == ours ]] && ! grep -qE '^ +reads +[1-9]' "$run/stats"; then
        die "nothing was read through the drop-in: $(cat -- "$run/stats")"
    fi
    rate="$(awk '/^Requests\/sec/ { print $2 }' <<<"$said")"
    rate_and_time "$rate" "$((after - before))" "$seconds"
}

print_machine "$folder"
for ((round = 0; round < rounds; round++)); do
    sides=(native ours)
    ((round % 2 == 0)) || sides=(ours native)
    for side in "${sides[@]}"; do
        measure "$side" >>"$run/$side"
    done
done
echo 'requests a second, and CPU time for each:'
print_ratio "$run/native" "$run/ours"
