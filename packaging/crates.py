"""The crates that the packages are linked with, of the versions in Cargo.lock."""

import json
import subprocess

PACKAGED = [
    "uringlet-cli",
    "uringlet-libaio",
    "uringlet-posix-aio",
    "uringlet-io-uring",
    "uringlet-capi",
]


def linked(triple, manifest="Cargo.toml", roots=None):
    """Packages by id, the ids of the roots, the ids of all linked packages, and the dependencies.

    The roots are PACKAGED, or the names that are given. Crates that are needed only for builds or
    tests are left out.
    """
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    command += ["--manifest-path", manifest, "--filter-platform", triple]
    metadata = json.loads(subprocess.check_output(command))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    wanted = roots or PACKAGED
    roots = [one for one, package in packages.items() if package["name"] in wanted]
    missing = set(wanted) - {packages[root]["name"] for root in roots}
    if missing:
        raise SystemExit(f"no package {', '.join(sorted(missing))} in {manifest}")
    todo, found, edges = list(roots), set(), []
    while todo:
        package = todo.pop()
        if package in found:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            # The kind None is an ordinary dependency; other kinds are "build" and "dev".
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                edges.append((package, dependency["pkg"]))
                todo.append(dependency["pkg"])
    ordered = sorted(found, key=lambda one: (packages[one]["name"], packages[one]["version"]))
    return packages, roots, ordered, edges
