#!/usr/bin/env python3
"""Reads tensors of a file straight into NumPy arrays: only what is asked for, all at once.

    python tensors.py FOLDER

The layout is that of safetensors: eight bytes with the length of a header, the header (JSON: for
each tensor its type, its shape, and where its bytes begin and end), and the bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import uringlet

Tensor = NDArray[Any]
TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
}


def save(path: str, tensors: dict[str, Tensor]) -> None:
    """Writes a file of tensors. Its data are on the disk when this returns."""
    names = {dtype: name for name, dtype in TYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        shape, offsets = list(tensor.shape), [begin, end]
        header[name] = {"dtype": names[tensor.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    start = 8 + len(text)
    with uringlet.File(path, "wb") as file:
        file.write_all(len(text).to_bytes(8, "little") + text, 0)
        places = [(file, start + header[name]["data_offsets"][0], np.ascontiguousarray(tensor))
                  for name, tensor in tensors.items()]
        written = uringlet.write_many(places)
        assert written == [tensor.nbytes for tensor in tensors.values()]
        file.fdatasync()


def places(start: int, header: dict[str, Any], names: list[str]) -> list[tuple[int, Tensor]]:
    """Where tensors are in the file, and new arrays for them."""
    return [
        (
            start + header[name]["data_offsets"][0],
            np.empty(header[name]["shape"], TYPES[header[name]["dtype"]]),
        )
        for name in names
    ]


def load(path: str, names: list[str]) -> dict[str, Tensor]:
    """Reads tensors with one call."""
    with uringlet.File(path, "rb") as file:
        length = int.from_bytes(file.read(8, 0), "little")
        header = json.loads(file.read(length, 8))
        found = places(8 + length, header, names)
        counts = uringlet.read_many([(file, at, tensor) for at, tensor in found])
        assert counts == [tensor.nbytes for _, tensor in found]
        return dict(zip(names, (tensor for _, tensor in found)))


async def aload(path: str, names: list[str]) -> dict[str, Tensor]:
    """As ``load``, without blocking the event loop."""
    async with await uringlet.File.aopen(path, "rb") as file:
        length = int.from_bytes(await file.aread(8, 0), "little")
        header = json.loads(await file.aread(length, 8))
        found = places(8 + length, header, names)
        counts = await uringlet.gather(*(file.aread_into(tensor, at) for at, tensor in found))
        assert counts == [tensor.nbytes for _, tensor in found]
        return dict(zip(names, (tensor for _, tensor in found)))


def main() -> None:
    path = os.path.join(sys.argv[1], "tensors")
    random = np.random.default_rng(7)
    tensors: dict[str, Tensor] = {
        "embedding": random.random((512, 64), dtype=np.float32),
        "bias": random.random(64).astype(np.float16),
        "positions": np.arange(512, dtype=np.int64),
    }
    save(path, tensors)
    wanted = ["bias", "embedding"]
    for read in (load(path, wanted), asyncio.run(aload(path, wanted))):
        assert all((read[name] == tensors[name]).all() for name in wanted)
        print({name: tensor.shape for name, tensor in read.items()})
    os.unlink(path)


if __name__ == "__main__":
    main()
