"""The paths of the package's files that are not Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_HERE = Path(__file__).resolve().parent

#: Each interface and the file of its drop-in, in the order in which the drop-ins are preloaded.
DROP_INS = {
    "libaio": "libaio.so",
    "posix-aio": "libposix_aio.so",
    "io-uring": "liburing.so",
}


def _at(*parts: str) -> Path:
    path = _HERE.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: the package was not installed from a wheel")
    return path


def drop_in(name: str) -> Path:
    """The file of a drop-in. The command of the package looks for the drop-in there, too.

    ``FileNotFoundError``: the package was not installed from a wheel.
    """
    return _at("lib", "uringlet", name)


def get_include() -> str:
    """The folder of ``libaio.h``, for the compiler (``-I``).

    ``FileNotFoundError``: the package was not installed from a wheel.
    """
    return str(_at("include", "libaio.h").parent)


def get_library_dir() -> str:
    """The folder of libaio, for the linker (``-L`` with ``-laio``), and the loader (its rpath).

    ``FileNotFoundError``: the package was not installed from a wheel.
    """
    return str(_at("lib", "libaio.so").parent)


def command() -> str:
    """The path of the ``uringlet`` command.

    ``FileNotFoundError``: the package was not installed from a wheel.
    """
    return str(_at("bin", "uringlet"))


def environment(
    base: Mapping[str, str] | None = None, *, only: str | None = None
) -> dict[str, str]:
    """The environment of a program that is to run on uringlet: ``base`` (that of this process, if
    none is given) with the drop-ins in front of its ``LD_PRELOAD``.

    ``only`` is ``"libaio"``, ``"posix-aio"`` or ``"io-uring"``: the calls of one interface. A
    static or set-user-ID program starts without the drop-ins, and without an error: ``uringlet
    check`` shows what a process has loaded.

    ``ValueError``: ``only`` is something else, or the package lies at a path with a space or a
    colon, which cannot be preloaded. ``FileNotFoundError``: as for ``drop_in``.
    """
    if only is not None and only not in DROP_INS:
        raise ValueError(f"only must be one of {', '.join(DROP_INS)}")
    names = [DROP_INS[only]] if only else list(DROP_INS.values())
    paths = [str(drop_in(name)) for name in names]
    if any(" " in path or ":" in path for path in paths):
        raise ValueError(f"the loader cannot preload from {_HERE}: a space or a colon")
    result = dict(os.environ if base is None else base)
    if result.get("LD_PRELOAD"):
        paths.append(result["LD_PRELOAD"])
    result["LD_PRELOAD"] = ":".join(paths)
    return result
