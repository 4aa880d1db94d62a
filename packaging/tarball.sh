#!/usr/bin/env bash
# Packs the archive of an architecture, with its checksum and SBOM: packaging/tarball.sh [ARCH]
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
choose_architecture "${1-}"
need_built
name="uringlet-$version-$arch-linux-gnu"
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
top="$work/$name"
stage "$top/root"
stage_c /usr/local "$work/c" lib
cp -a -- "$work/c/usr/local/." "$top/root/"
install -m 755 "$root/packaging/install.sh" "$top/install.sh"
# shellcheck disable=SC2016 # what is written is a script
printf '#!/bin/sh\n# Removes what install.sh has installed: ./uninstall.sh [PREFIX]\n%s\n' \
    'exec "$(dirname -- "$0")/install.sh" --uninstall "$@"' >"$top/uninstall.sh"
chmod 755 "$top/uninstall.sh"
install -m 644 "$root/LICENSE-APACHE" "$root/LICENSE-MIT" "$root/README.md" "$top/"
third_party "$top"
python3 "$root/packaging/sbom.py" "$triple" >"$top/SBOM.spdx.json"
(cd -- "$top/root" && find . \( -type f -o -type l \) -printf '%P\n' | LC_ALL=C sort) \
    >"$top/MANIFEST"
(cd -- "$top" && find . -type f ! -name SHA256SUMS -printf '%P\0' | LC_ALL=C sort -z |
    xargs -0 sha256sum) >"$work/sums"
mv -- "$work/sums" "$top/SHA256SUMS"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    -C "$work" -cf - "$name" | gzip -9n >"$packages/$name.tar.gz"
(cd -- "$packages" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
cp -- "$top/SBOM.spdx.json" "$packages/$name.spdx.json"
printf '%s\n' "$packages/$name.tar.gz"
