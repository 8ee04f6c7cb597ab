"""The probe: one file that measures a machine with PyTorch alone and imports nothing of this package."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources


@lru_cache(maxsize=1)
def source_text() -> str:
    """The probe's file as it is downloaded."""
    return (resources.files("app.probe") / "bytebound_probe.py").read_text(encoding="utf-8")
