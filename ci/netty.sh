#!/usr/bin/env bash
# Runs an echo server and its clients on Netty's transport for io_uring, natively and on the
# drop-in: ci/netty.sh [KIND CLIENTS MESSAGES SIZE]...
#
# CLIENTS connections over loopback send MESSAGES messages of SIZE bytes each, and check what comes
# back. KIND is plain, groups, pieces or uncopied (ci/NettyEcho.java). Needs a JDK and Maven, which
# fetches Netty; nothing of it is kept in the repository. FORBID is the drop-in's sandbox (docker by
# default), LIMIT the number of seconds for each run (60). Fails if bytes are missing or wrong.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
(($# % 4 == 0)) || die "KIND CLIENTS MESSAGES SIZE, for each run (--help)"
need javac
need mvn
uringlet="$(uringlet_command)"
folder="$target/netty"
version=4.2.18.Final

# Fetches Netty's libraries.
fetch() {
    mkdir -p -- "$folder"
    cat >"$folder/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>echo</groupId><artifactId>echo</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>io.netty</groupId><artifactId>netty-all</artifactId><version>$version</version>
  </dependency></dependencies>
</project>
POM
    mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$folder/partial"
    mv -- "$folder/partial" "$folder/$version"
}

[[ -d "$folder/$version" ]] || fetch
javac -cp "$folder/$version/*" -d "$folder/classes" "$root/ci/NettyEcho.java"
if (($# == 0)); then
    for kind in plain groups pieces uncopied; do
        set -- "$@" "$kind" 1 1000 64 "$kind" 64 200 64 "$kind" 200 20 700 "$kind" 16 50 16384
    done
fi
while (($#)); do
    for side in natively here; do
        before=()
        [[ "$side" == natively ]] || before=("$uringlet" run --forbid "${FORBID:-docker}" --)
        printf '%-8s %3s x %4s of %5s bytes, %-10s' "$1" "$2" "$3" "$4" "$side:"
        timeout --kill-after=5 "${LIMIT:-60}" "${before[@]}" \
            java -cp "$folder/$version/*:$folder/classes" NettyEcho "$1" "$2" "$3" "$4"
    done
    shift 4
done
