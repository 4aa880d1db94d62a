#!/usr/bin/env python3
"""Prints what the packages are made of, as SPDX 2.3 in JSON: packaging/sbom.py TRIPLE

The crates that the command, the drop-ins and the C library are linked with for this target, of the
versions in Cargo.lock; no crate that only builds or tests.
"""

import datetime
import hashlib
import json
import os
import sys

from crates import linked


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    packages, roots, ordered, edges = linked(sys.argv[1])

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
    digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()[:16]
    version = packages[roots[0]]["version"]
    described = [("SPDXRef-DOCUMENT", "DESCRIBES", name(root)) for root in sorted(roots)]
    needed = [(name(a), "DEPENDS_ON", name(b)) for a, b in sorted(edges)]
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
