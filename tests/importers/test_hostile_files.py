"""Damaged training logs and micro-benchmark files give runs that can be stored, or a refusal; nothing else."""

from __future__ import annotations

import random

import pytest

from .fixture_files import UPLOADS, data
from .test_hostile import attempt

FORMATS = (
    "deepep-test",
    "flash-attention-bench",
    "google-benchmark",
    "hf-trainer-state",
    "kernelbench-timing",
    "liger-kernel-csv",
    "maxtext-log",
    "megatron-golden-values",
    "megatron-log",
    "mlperf-mllog",
    "nccl-tests",
    "pytest-benchmark",
    "torchtitan-log",
    "triton-perf-report",
)
"""Folders of files; those of the serving clients are damaged in the tests beside this one."""

FILES = sorted(
    f"{folder}/{file.name}" for folder in FORMATS for file in (UPLOADS / folder).iterdir() if file.name != "NOTE.md"
)
INSERTED = (
    b"nan",
    b"1e999",
    b"-",
    b",",
    b"\n",
    b"\r",
    b"\xff",
    b"[",
    b"{",
    b'"',
    b"|",
    b"9" * 500,
    b"\x1b[31m",
    b"<b>",
)


def cut(file: str) -> bytes:
    """Few whole lines do: the same code reads each of them."""
    content = data(file)
    return content if file.endswith(".json") else b"\n".join(content.split(b"\n")[:60])


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_read_or_refused(file: str) -> None:
    content, chance = cut(file), random.Random(file)
    for _ in range(12):
        attempt(content[: chance.randrange(1, len(content))])
        attempt(content[chance.randrange(len(content)) :])
        damaged = bytearray(content)
        for _ in range(chance.randrange(1, 8)):
            at = chance.randrange(len(damaged))
            kind = chance.random()
            if kind < 0.3:
                damaged[at] = chance.randrange(256)
            elif kind < 0.6:
                del damaged[at : at + chance.randrange(1, 60)]
            else:
                damaged[at:at] = chance.choice(INSERTED)
        attempt(bytes(damaged))
