"""The formats that are read, and how one is chosen for an upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.importers.aiperf import Aiperf
from app.importers.aiperf_records import AiperfRecords
from app.importers.base import Importer, ParsedUpload, Sniff, UnreadableUpload, streams
from app.importers.credentials import without_credentials
from app.importers.deepep_test import DeepepTest
from app.importers.flash_attention_bench import FlashAttentionBench
from app.importers.genai_perf import GenaiPerf, GenaiPerfTable
from app.importers.google_benchmark import GoogleBenchmark
from app.importers.guidellm import Guidellm
from app.importers.hf_trainer_log import HfTrainerLog
from app.importers.hf_trainer_state import HfTrainerState
from app.importers.inferencex import InferencexAgg, InferencexResult
from app.importers.kernelbench_timing import KernelbenchTiming
from app.importers.liger_kernel_csv import LigerKernelCsv
from app.importers.llama_bench import LlamaBench
from app.importers.maxtext_log import MaxtextLog
from app.importers.megatron_golden_values import MegatronGoldenValues
from app.importers.megatron_log import MegatronLog
from app.importers.mlperf_loadgen_summary import MlperfLoadgenSummary
from app.importers.mlperf_mllog import MlperfMllog
from app.importers.native import Native
from app.importers.nccl_tests import NcclTests
from app.importers.ncu_csv import NcuCsv
from app.importers.nsys_stats import NsysStats
from app.importers.optimum_benchmark import OptimumBenchmark
from app.importers.pytest_benchmark import PytestBenchmark
from app.importers.reading import DEFAULT_LIMITS, Content, Limits, Progress, clean
from app.importers.rocprof import Rocprof, RocprofCompute
from app.importers.serving_console import ServingConsole
from app.importers.sglang_bench_one_batch import SglangBenchOneBatch
from app.importers.sglang_bench_serving import SglangBenchServing
from app.importers.table import TableMapping, UnmappedTable, with_mapping
from app.importers.torch_profiler_trace import TorchProfilerTrace
from app.importers.torchtitan_log import TorchtitanLog
from app.importers.triton_perf_report import TritonPerfReport
from app.importers.trtllm_bench import TrtllmBench
from app.importers.unsupported import KNOWN_UNSUPPORTED, guess_of_broken_json
from app.importers.vllm_bench_latency import VllmBenchLatency
from app.importers.vllm_bench_serve import VllmBenchServe
from app.importers.vllm_bench_throughput import VllmBenchThroughput
from app.importers.vllm_pytorch_side_file import VllmPytorchSideFile


@dataclass(frozen=True, slots=True)
class Tables:
    """How tables are read: mappings by the key of their columns, and one that was chosen for this very file."""

    remembered: Mapping[str, TableMapping] = field(default_factory=dict)
    chosen: TableMapping | None = None


NO_TABLES = Tables()

IMPORTERS: tuple[Importer, ...] = (
    Native(),
    InferencexAgg(),
    InferencexResult(),
    SglangBenchServing(),
    VllmBenchServe(),
    VllmBenchLatency(),
    VllmBenchThroughput(),
    VllmPytorchSideFile(),
    SglangBenchOneBatch(),
    TrtllmBench(),
    Aiperf(),
    GenaiPerf(),
    AiperfRecords(),
    Guidellm(),
    OptimumBenchmark(),
    LlamaBench(),
    MlperfLoadgenSummary(),
    GenaiPerfTable(),
    ServingConsole(),
    HfTrainerState(),
    MlperfMllog(),
    MegatronGoldenValues(),
    MegatronLog(),
    TorchtitanLog(),
    MaxtextLog(),
    HfTrainerLog(),
    NcclTests(),
    PytestBenchmark(),
    GoogleBenchmark(),
    KernelbenchTiming(),
    LigerKernelCsv(),
    FlashAttentionBench(),
    DeepepTest(),
    TritonPerfReport(),
    TorchProfilerTrace(),
    NcuCsv(),
    NsysStats(),
    Rocprof(),
    RocprofCompute(),
)
"""Every importer, more specific formats first: equal confidence goes to the earlier one."""


def accepted_formats() -> tuple[str, ...]:
    """Titles of the formats that are read, for messages and pages."""
    return tuple(importer.title for importer in IMPORTERS)


def detect(content: Content) -> Importer:
    """The importer that is surest of the content. Raises UnreadableUpload saying why none fits.

    Formats that stream are asked first and by the beginning alone, so that a large file is not read to be recognised.
    """
    early = [(importer, _early_sniff(importer, content.preview)) for importer in IMPORTERS if streams(importer)]
    if early:
        importer, sniff = max(early, key=lambda pair: pair[1].confidence)
        if sniff.confidence >= 0.5:
            return importer
    judged = content.preview if content.is_large else content
    sniffs = [(importer, importer.sniff(judged)) for importer in IMPORTERS]
    best, sniff = max(sniffs, key=lambda pair: pair[1].confidence)
    if sniff.confidence > 0:
        return best
    tried = [(importer.id, sniff.reason) for importer, sniff in sniffs]
    refusal = _refusal(judged, tried)
    if content.is_large and refusal.reason != "not-supported":
        raise UnreadableUpload(
            "too-large",
            f"The file is larger than {content.limits.max_bytes / 2**20:,.6g} MiB, and its beginning is no format that "
            "is read piece by piece.",
            hint="Leave out per-request details, or upload the summary that the tool writes.",
            tried=tried,
            accepts=accepted_formats(),
        )
    raise refusal


def _early_sniff(importer: Importer, preview: Content) -> Sniff:
    """What a format that streams makes of the beginning, whether or not that could be read whole."""
    try:
        return importer.sniff(preview)
    except UnreadableUpload as refusal:
        if refusal.reason in ("binary", "empty"):
            raise
        return Sniff(0.0, refusal.seen)


def _refusal(content: Content, tried: list[tuple[str, str]]) -> UnreadableUpload:
    """Why nothing fits, naming what the file seems to be."""
    first = content.first_record
    known = next((known for known in KNOWN_UNSUPPORTED if known.matches(content, first)), None)
    if known is not None:
        return UnreadableUpload(
            "not-supported",
            f"This looks like {known.title}, a format that is not supported yet.",
            hint=known.note or "Our own format takes the same numbers, if you can write a few lines of JSON.",
            tried=tried,
            accepts=accepted_formats(),
        )
    document = content.json
    if content.starts_as_json and document.error:
        guess = guess_of_broken_json(content.head) or "JSON"
        if document.cut_at is not None:
            return UnreadableUpload(
                "cut-off",
                f"This looks like {guess} that is cut off at byte {document.cut_at}.",
                hint="The writer or the copy was interrupted: upload the whole file.",
                tried=tried,
                accepts=accepted_formats(),
            )
        return UnreadableUpload(
            "damaged",
            f"This looks like {guess} that is damaged: {document.error}.",
            hint="Upload the file as the tool wrote it.",
            tried=tried,
            accepts=accepted_formats(),
        )
    if first is not None:
        keys = ", ".join(clean(key, 40) for key in list(first)[:8])
        seen = (
            f"The file is JSON with the {'keys' if len(first) > 1 else 'key'} {keys}, which is no format known here."
            if keys
            else "The file is an empty JSON object."
        )
    else:
        line = next((clean(line, 80) for line in content.head.split("\n") if line.strip()), "")
        seen = f"The file is text that begins with “{line}”, which is no format known here."
    return UnreadableUpload(
        "not-recognised",
        seen,
        hint="Upload a result file of one of the accepted tools, or write the numbers in our own format.",
        tried=tried,
        accepts=accepted_formats(),
    )


def parse_upload(
    source: bytes | Path,
    filename: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    tables: Tables = NO_TABLES,
) -> ParsedUpload:
    """Read an uploaded file into runs. For content that it cannot use it raises UnreadableUpload, and nothing else.

    `progress` is called while the file is read; what it raises ends the work. `tables` says how tables of no known
    tool are read; one that it does not explain raises UnmappedTable.
    """
    return parse_content(Content(source, filename, limits, progress), tables)


def parse_content(content: Content, tables: Tables = NO_TABLES) -> ParsedUpload:
    """See `parse_upload`."""
    return without_credentials(_parsed(content, tables))


def _parsed(content: Content, tables: Tables) -> ParsedUpload:
    if tables.chosen is not None:
        return _as_table(content, tables)
    try:
        importer = detect(content)
    except UnreadableUpload as refusal:
        if content.is_large or refusal.reason != "not-recognised":
            raise
        tried, accepts = refusal.tried, refusal.accepts
        found = with_mapping(content, tables.remembered, None, lambda view: UnmappedTable(view, tried, accepts))
        if found is None:
            raise
        return found
    return importer.parse(content)


def _as_table(content: Content, tables: Tables) -> ParsedUpload:
    found = with_mapping(content, {}, tables.chosen, UnmappedTable)
    if found is None:
        raise UnreadableUpload(
            "not-recognised",
            "The file is no table, so a mapping of columns cannot be used on it.",
            hint="Send it without a mapping.",
        )
    return found
