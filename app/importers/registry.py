"""The formats that are read, and how one is chosen for an upload."""

from __future__ import annotations

from app.importers.base import Importer, ParsedUpload, UnreadableUpload
from app.importers.reading import DEFAULT_LIMITS, Content, Limits
from app.importers.sglang_bench_serving import SglangBenchServing
from app.importers.vllm_bench_serve import VllmBenchServe

IMPORTERS: tuple[Importer, ...] = (SglangBenchServing(), VllmBenchServe())
"""Every importer, more specific formats first: equal confidence goes to the earlier one."""


def detect(content: Content) -> Importer:
    """The importer that is surest of the content. Raises UnreadableUpload saying why none fits."""
    sniffs = [(importer, importer.sniff(content)) for importer in IMPORTERS]
    best, sniff = max(sniffs, key=lambda pair: pair[1].confidence)
    if sniff.confidence > 0:
        return best
    raise UnreadableUpload(
        "not-recognised",
        "The file is not one of the known benchmark formats.",
        tried=tuple((importer.id, sniff.reason) for importer, sniff in sniffs),
        accepts=tuple(importer.title for importer in IMPORTERS),
    )


def parse_upload(data: bytes, filename: str | None = None, limits: Limits = DEFAULT_LIMITS) -> ParsedUpload:
    """Read an uploaded file into runs. Raises UnreadableUpload, and nothing else, for content it cannot use."""
    content = Content(data, filename, limits)
    return detect(content).parse(content)
