"""Read the file of an offline W&B run: a LevelDB log whose records are W&B's own protobuf messages."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, FILE_HEADER, HEADER = 32768, 7, struct.Struct("<IHB")  # checksum, length, type
FULL, FIRST, LAST = 1, 2, 4


def iterate_records(file: Path) -> Iterator[Record]:
    """Yield all messages of a file run-*.wandb."""
    content, at, parts = file.read_bytes(), FILE_HEADER, b""
    assert content[:4] == b":W&B"
    while at + HEADER.size <= len(content):
        if BLOCK - at % BLOCK < HEADER.size:  # the end of a block is filled with zeros
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(content, at)
        piece = content[at + HEADER.size : at + HEADER.size + length]
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            yield record
        at += HEADER.size + length


def read_history(folder: Path) -> list[dict[str, float]]:
    """Return what was logged in all offline runs below a folder, in order."""
    rows = []
    for file in sorted(folder.rglob("run-*.wandb")):
        for record in iterate_records(file):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows
