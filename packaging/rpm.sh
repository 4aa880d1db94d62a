#!/usr/bin/env bash
# Packs the RPM packages of an architecture: packaging/rpm.sh [ARCH]
#
# The packages are uringlet (the command and the drop-ins), liburinglet and liburinglet-devel.
set -euo pipefail
# shellcheck source=packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"
choose_architecture "${1-}"
need_built
need rpmbuild
work="$(mktemp -d)"
trap 'rm -rf -- "$work"' EXIT
tree="$work/tree"
stage "$tree/usr"
stage_c /usr "$tree" lib64
install -d "$tree/usr/share/zsh/site-functions"
mv -- "$tree/usr/share/zsh/vendor-completions/_uringlet" "$tree/usr/share/zsh/site-functions/"
rmdir -- "$tree/usr/share/zsh/vendor-completions"
find "$tree/usr/share/man" -type f -exec gzip -9n {} +
chmod 755 "$tree"/usr/lib/uringlet/*.so "$tree/usr/lib64/liburinglet.so.$version"
for package in liburinglet liburinglet-devel uringlet; do
    install -d "$tree/usr/share/licenses/$package"
    install -m 644 "$root/LICENSE-APACHE" "$root/LICENSE-MIT" "$tree/usr/share/licenses/$package/"
    third_party "$tree/usr/share/licenses/$package"
done
rpmbuild --quiet -bb --target "$arch" --buildroot "$work/root" \
    --define "_topdir $work/rpm" --define "_rpmdir $packages" --define "_build_id_links none" \
    --define "tree $tree" --define "upstream $version" "$root/packaging/uringlet.spec"
printf '%s\n' "$packages/$arch"/*.rpm
