#!/usr/bin/env python3
"""Writes an image that holds the drop-ins, the command and their licences, as an OCI archive:

packaging/image.py ARCHITECTURE VERSION FOLDER OUTPUT.tar

In a Dockerfile: COPY --from=uringlet /uringlet /opt/uringlet
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile

NAMES = ["uringlet", "libaio.so", "libposix_aio.so", "liburing.so"]
FILES = [(name, 0o755) for name in NAMES] + [("THIRD-PARTY-LICENSES", 0o644)]
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]
ROOT = pathlib.Path(__file__).parent.parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def archive(files, folder=None):
    """A tar archive of (name, mode, bytes)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        folders = [folder] if folder else []
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, EPOCH
            tar.addfile(info)
        for name, mode, content in files:
            info = tarfile.TarInfo(name)
            info.mode, info.size, info.mtime = mode, len(content), EPOCH
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    architecture, version, folder, output = sys.argv[1:]
    folder = pathlib.Path(folder)
    content = [(f"uringlet/{name}", mode, (folder / name).read_bytes()) for name, mode in FILES]
    content += [(f"uringlet/{name}", 0o644, (ROOT / name).read_bytes()) for name in LICENCES]
    layer = archive(content, "uringlet")
    packed = gzip.compress(layer, mtime=0)
    blobs = []

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        blobs.append((f"blobs/sha256/{digest}", 0o644, content))
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    oci = "application/vnd.oci.image"
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Labels": {"org.opencontainers.image.version": version}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(json.dumps(config).encode(), f"{oci}.config.v1+json"),
        "layers": [blob(packed, f"{oci}.layer.v1.tar+gzip")],
    }
    entry = blob(json.dumps(manifest).encode(), f"{oci}.manifest.v1+json")
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": f"uringlet:{version}"}
    index = {"schemaVersion": 2, "manifests": [entry]}
    files = [("oci-layout", 0o644, b'{"imageLayoutVersion": "1.0.0"}')]
    files += [("index.json", 0o644, json.dumps(index).encode())] + blobs
    pathlib.Path(output).write_bytes(archive(files))
    print(output)


if __name__ == "__main__":
    main()
