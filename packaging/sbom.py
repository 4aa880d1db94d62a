#!/usr/bin/env python3
"""Prints what the packages are made of, as SPDX 2.3 in JSON: packaging/sbom.py TRIPLE

The crates that the command, the drop-ins and the C library are linked with for this target, of the
versions in Cargo.lock; no crate that only builds or tests.
"""

import datetime
import hashlib
import json
import os
import subprocess
import sys

PACKAGED = ["uringlet-cli", "uringlet-libaio", "uringlet-posix-aio", "uringlet-capi"]


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    output = subprocess.check_output(command + ["--filter-platform", sys.argv[1]])
    metadata = json.loads(output)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [i for i, package in packages.items() if package["name"] in PACKAGED]
    roots, found, edges = list(todo), set(), []
    while todo:
        package = todo.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            # None is an ordinary dependency; the others are "build" and "dev".
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                edges.append((package, dependency["pkg"]))
                todo.append(dependency["pkg"])

    def name(package):
        digest = hashlib.sha256(package.encode()).hexdigest()[:12]
        return f"SPDXRef-{packages[package]['name']}-{digest}".replace("_", "-")

    def describe(package):
        one = packages[package]
        return {
            "SPDXID": name(package),
            "name": one["name"],
            "versionInfo": one["version"],
            "licenseDeclared": (one["license"] or "NOASSERTION").replace("/", " OR "),
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:cargo/{one['name']}@{one['version']}",
            }],
        }

    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    ordered = sorted(found, key=lambda one: (packages[one]["name"], packages[one]["version"]))
    digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()[:16]
    version = packages[roots[0]]["version"]
    described = [("SPDXRef-DOCUMENT", "DESCRIBES", name(root)) for root in sorted(roots)]
    needed = [(name(a), "DEPENDS_ON", name(b)) for a, b in sorted(edges) if b in found]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"uringlet-{version}-{sys.argv[1]}",
        "documentNamespace": f"https://spdx.org/spdxdocs/uringlet-{version}-{digest}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: packaging/sbom.py"],
        },
        "packages": [describe(package) for package in ordered],
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
            for a, kind, b in described + needed
        ],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
