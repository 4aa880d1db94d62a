"""The programs of the documents run."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def programs():
    for name in ("docs/python.md", "python/README.md"):
        text = (ROOT / name).read_text()
        for at, program in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            yield pytest.param(program, id=f"{name} {at}")


@pytest.mark.parametrize("program", list(programs()))
def test_a_program_of_the_documents(program, tmp_path):
    if "aiofile" in program:
        reason = "aiofile is not installed"
        try:
            import aiofile  # noqa: F401
        except ImportError:
            print(f"\nSKIPPED a program of the documents: {reason}", file=sys.stderr)
            pytest.skip(reason)
    (tmp_path / "data.bin").write_bytes(bytes(1 << 20))
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
