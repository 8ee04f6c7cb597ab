"""The importers of micro-benchmarks and collectives, more specific formats first."""

from __future__ import annotations

from app.importers.base import Importer
from app.importers.deepep_test import DeepepTest
from app.importers.flash_attention_bench import FlashAttentionBench
from app.importers.google_benchmark import GoogleBenchmark
from app.importers.kernelbench_timing import KernelbenchTiming
from app.importers.liger_kernel_csv import LigerKernelCsv
from app.importers.nccl_tests import NcclTests
from app.importers.pytest_benchmark import PytestBenchmark
from app.importers.triton_perf_report import TritonPerfReport

MICRO: tuple[Importer, ...] = (
    NcclTests(),
    PytestBenchmark(),
    GoogleBenchmark(),
    KernelbenchTiming(),
    LigerKernelCsv(),
    FlashAttentionBench(),
    DeepepTest(),
    TritonPerfReport(),
)
