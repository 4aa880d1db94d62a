#!/usr/bin/env python3
"""Prints the licences of what the packages are linked with:

  packaging/third_party.py TRIPLE [MANIFEST NAME...]

Each crate with the licence under which it is used, then the text of each licence with its copyright
lines. With MANIFEST and NAMEs, the crates of those packages are added, which belong to a workspace
of their own.

  packaging/third_party.py --check SBOM TEXT

Fails if a crate of the SBOM is not in TEXT, which may be packed by gzip.
"""

import gzip
import json
import os
import pathlib
import re
import sys
import textwrap

from crates import linked

# If a crate may be used under one of several licences, the first licence of this list is chosen.
PREFERRED = [
    "Apache-2.0",
    "MIT",
    "Unicode-3.0",
    "Zlib",
    "BSD-3-Clause",
    "BSD-2-Clause",
    "Apache-2.0 WITH LLVM-exception",
]
# The part of a file's name that tells the licence, for crates with several licence files.
MARKS = {
    "Apache-2.0": "APACHE",
    "MIT": "MIT",
    "Unicode-3.0": "UNICODE",
    "Zlib": "ZLIB",
    "BSD-3-Clause": "BSD",
    "BSD-2-Clause": "BSD",
}
# This project's file has the text of the licence only, without notices or other additions.
APACHE = pathlib.Path(__file__).parent.parent / "LICENSE-APACHE"
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this
software and associated documentation files (the "Software"), to deal in the Software
without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons
to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR
PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE
FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
DEALINGS IN THE SOFTWARE.
"""
RULE = "-" * 100


def chosen(expression):
    """The licences under which a crate is used: one of each part that AND joins."""
    parts = expression.replace("/", " OR ").split(" AND ")
    for part in parts:
        offered = [one.strip() for one in part.strip().strip("()").split(" OR ")]
        licence = next((one for one in PREFERRED if one in offered), None)
        if licence is None:
            sys.exit(f"none of {', '.join(PREFERRED)} is in {expression}")
        yield licence


def text_of(package, licence):
    """The text of a crate's licence, with its copyright lines."""
    if licence == "Apache-2.0":
        return APACHE.read_text()
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [one for one in sorted(folder.iterdir()) if re.match("(?i)licen[cs]e", one.name)]
    marked = [one for one in files if MARKS.get(licence, licence) in one.name.upper()]
    if marked or len(files) == 1:
        return (marked or files)[0].read_text()
    if licence == "MIT" and not files:
        authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
        return f"Copyright (c) {authors}\n\n{MIT}"
    sys.exit(f"{package['name']} {package['version']}: no text of {licence} in {folder}")


def notices(package):
    """The NOTICE files of a crate, which the Apache licence requires in every copy."""
    folder = pathlib.Path(package["manifest_path"]).parent
    return [one.read_text() for one in sorted(folder.iterdir()) if one.name.upper() == "NOTICE"]


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--check":
        check(sys.argv[2], sys.argv[3])
        return
    if len(sys.argv) == 3 or len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    crates = {}
    for where in [()] + ([(sys.argv[2], sys.argv[3:])] if len(sys.argv) > 3 else []):
        packages, _, ordered, _ = linked(sys.argv[1], *where)
        # Crates without a source are this project's own.
        crates |= {one: packages[one] for one in ordered if packages[one]["source"]}
    texts, lines = {}, []
    for package in sorted(crates.values(), key=lambda one: (one["name"], one["version"])):
        name = f"{package['name']} {package['version']}"
        licences = list(chosen(package["license"]))
        lines.append(f"{name}: {' and '.join(licences)}")
        for text in [text_of(package, licence) for licence in licences] + notices(package):
            # Texts that differ only in their line breaks count as one text.
            texts.setdefault(" ".join(text.split()), (text, []))[1].append(name)
    print("uringlet is linked with these crates, each used under the licence beside it. The texts")
    print("follow. The Rust standard library is linked too, under the Apache License 2.0; its own")
    print("list comes with each Rust toolchain (share/doc/rust/COPYRIGHT-library.html).\n")
    print("\n".join(lines))
    for text, names in texts.values():
        listed = textwrap.fill(", ".join(names), len(RULE), break_on_hyphens=False)
        print(f"\n{RULE}\n{listed}\n{RULE}\n\n{text.strip()}")


def check(sbom, text):
    """Fails if a crate of the SBOM, other than this project's, is not in the text."""
    with open(sbom, encoding="utf-8") as file:
        packages = json.load(file)["packages"]
    opened = gzip.open if text.endswith(".gz") else open
    with opened(text, "rt", encoding="utf-8") as file:
        found = {line.split(":")[0] for line in file if re.match(r"\S+ \S+: ", line)}
    names = [f"{one['name']} {one['versionInfo']}" for one in packages]
    names = [one for one in names if not one.startswith("uringlet")]
    missing = [one for one in names if one not in found]
    if missing or not names:
        sys.exit(f"{text} lacks {', '.join(missing) or 'everything: the SBOM is empty'}")
    print(f"{text}: licences of {len(names)} crates, as in {os.path.basename(sbom)}")


if __name__ == "__main__":
    main()
