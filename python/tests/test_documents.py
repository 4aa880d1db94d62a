"""The programs of the documents and the examples run, and are typed."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "python/examples"
COMMANDS = {
    "ranges.py": ["--ranges", "64", "--rounds", "1"],
    "tensors.py": ["."],
}


def programs():
    for name in ("docs/python.md", "python/README.md"):
        text = (ROOT / name).read_text()
        for at, program in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            yield pytest.param(program, id=f"{name} {at}")


def run(*arguments, cwd):
    ran = subprocess.run(
        arguments, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            print(f"\nSKIPPED {__name__}: {module} is not installed", file=sys.stderr)
            pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize("program", list(programs()))
def test_a_program_of_the_documents(program, tmp_path):
    needs(*["aiofile"] * ("aiofile" in program))
    (tmp_path / "data.bin").write_bytes(bytes(1 << 20))
    run(sys.executable, "-c", program, cwd=tmp_path)


def test_all_examples_are_known():
    assert sorted(COMMANDS) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example(name, tmp_path):
    needs("numpy")
    run(sys.executable, str(EXAMPLES / name), *COMMANDS[name], cwd=tmp_path)


ARRAYS = """
import asyncio
import mmap
import numpy as np
import uringlet

async def main() -> None:
    rows = np.empty((4, 16), np.uint8)
    with uringlet.File("data.bin", "r+b") as file, open("data.bin", "rb") as other:
        counts: list[int] = uringlet.read_many([(file, 0, row) for row in rows])
        several: list[int | OSError] = uringlet.read_many(
            [(other, 0, bytearray(1)), (file.fileno(), 0, mmap.mmap(-1, 1))], errors="return"
        )
        file.write_all(rows, 0)
        await file.aread_into(rows[0], 0)
        values: list[bytes] = await uringlet.gather(file.aread(1, 0), file.aread_all())
        task: asyncio.Task[int] = asyncio.create_task(file.awrite(memoryview(b"x"), 0))
        assert await task == 1 and len(file) == (await file.astat()).st_size
        assert counts == [16] * 4 and len(several) == len(values) == 2

asyncio.run(main())
"""


def test_programs_and_examples_are_typed(tmp_path):
    """Type checkers accept each program in strict mode. `ARRAYS` has buffers of all kinds."""
    needs("mypy", "pyright", "numpy", "aiofile")
    for at, program in enumerate([*(one.values[0] for one in programs()), ARRAYS]):
        (tmp_path / f"program{at}.py").write_text(program)
    for example in EXAMPLES.glob("*.py"):
        (tmp_path / example.name).write_text(example.read_text())
    (tmp_path / "data.bin").write_bytes(bytes(1 << 20))
    run(sys.executable, "-c", ARRAYS, cwd=tmp_path)
    run(sys.executable, "-m", "mypy", "--strict", ".", cwd=tmp_path)
    run(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, ".", cwd=tmp_path)
