"""Forty tasks at once write and read files with turbofile: turbofile_tasks.py FOLDER."""

import asyncio
import os
import random
import sys

import turbofile


async def whole_file(path, data):
    await turbofile.write_bytes(path, data)
    assert await turbofile.read_bytes(path) == data
    async with turbofile.open(path, "rb") as file:
        await file.seek(len(data) // 2)
        assert await file.read() == data[len(data) // 2 :]


async def parts(path, data, draw):
    async with turbofile.open(path, "wb") as file:
        at = 0
        while at < len(data):
            at += await file.write(data[at : at + draw.randrange(1, 200_000)])
    async with turbofile.open(path, "rb") as file:
        got = bytearray()
        while part := await file.read(draw.randrange(1, 300_000)):
            got += part
    assert got == data


async def lines(path):
    expected = [f"line {number} ü\n" for number in range(50)]
    async with turbofile.open(path, "w", encoding="utf-8") as file:
        for line in expected:
            await file.write(line)
    async with turbofile.open(path, "r", encoding="utf-8") as file:
        assert [line async for line in file] == expected


async def task(folder, number):
    draw = random.Random(number)
    path = os.path.join(folder, f"file{number}")
    data = draw.randbytes(draw.randrange(1, 3_000_000))
    await parts(path, data, draw)
    await whole_file(path, data)
    await lines(path)
    os.unlink(path)
    try:
        await turbofile.read_bytes(path)
    except FileNotFoundError:
        return
    raise AssertionError(path)


async def main(folder):
    await asyncio.gather(*(task(folder, number) for number in range(40)))
    print("40 tasks, all files as written")


asyncio.run(main(sys.argv[1]))
