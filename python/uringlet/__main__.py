"""``python -m uringlet``: the command of the package, and two commands for its files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from uringlet import _package

_HELP = """\
usage: python -m uringlet COMMAND ...

  env [--only INTERFACE]   print the lines that have a shell run programs on uringlet
  check PID                say whether a process has the drop-ins loaded; 0: yes, 1: no
  run -- PROGRAM ...       run a program on uringlet
  doctor                   say what works on this machine

Every other command is that of `uringlet`: see `python -m uringlet --help`.
"""


def _env(arguments: list[str]) -> int:
    only = None
    if arguments[:1] == ["--only"] and len(arguments) == 2:
        only = arguments[1]
    elif arguments:
        print(_HELP, end="", file=sys.stderr)
        return 2
    try:
        preload = _package.environment(only=only)["LD_PRELOAD"]
    except (OSError, ValueError) as error:
        print(f"uringlet env: {error}", file=sys.stderr)
        return 1
    print(f"export LD_PRELOAD={shlex.quote(preload)}")
    return 0


def _has_check(command: str) -> bool:
    """Has the command a `check` of its own?"""
    found = subprocess.run([command, "check", "--help"], capture_output=True, check=False)
    return found.returncode == 0


def _check(pid: str) -> int:
    """Are the drop-ins among what a process has mapped (proc_pid_maps(5))?"""
    try:
        with open(f"/proc/{int(pid)}/maps", encoding="utf-8", errors="surrogateescape") as maps:
            mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    except ValueError:
        print(f"uringlet check: {pid} is no process number", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"uringlet check: {error}", file=sys.stderr)
        return 2
    drop_ins = _package.DROP_INS.items()
    loaded = [name for name, file in drop_ins if str(_package.drop_in(file)) in mapped]
    print(f"{pid}: {'loaded: ' + ', '.join(loaded) if loaded else 'no drop-in is loaded'}")
    return 0 if loaded else 1


def main() -> int:
    """The command; does not return if the packaged one takes over."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["env"]:
        return _env(arguments[1:])
    if not arguments:
        print(_HELP, end="", file=sys.stderr)
        return 2
    try:
        command = _package.command()
    except OSError as error:
        print(f"uringlet: {error}", file=sys.stderr)
        return 1
    if arguments[0] == "check" and len(arguments) == 2 and not _has_check(command):
        return _check(arguments[1])
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    sys.exit(main())
