#!/usr/bin/env bash
# Builds every package of an architecture, into target/packages: packaging/all.sh [ARCH]
#
# At the end, the programs of the archive run; programs for another architecture run in QEMU's user
# mode.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
choose_architecture "${1-}"
if [[ "$arch" == "$(uname -m)" ]]; then
    "$root/ci/setup.sh" --packages
else
    "$root/ci/setup.sh" --packages "$arch"
    rustup target add "$triple"
fi
cd -- "$root"
packaging/build.sh "$arch"
packaging/tarball.sh "$arch"
packaging/deb.sh "$arch"
packaging/rpm.sh "$arch"
third_party "$built"
python3 packaging/image.py "$image_arch" "$version" "$built" \
    "$packages/uringlet-$version-$arch.oci.tar"
packaging/answer.sh "$arch"
