"""Formats that are recognised so that a refusal can name them, but not read yet.

An entry goes away when an importer for its format is added. The tests follow the shape of real files of each tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.importers.reading import Content


@dataclass(frozen=True, slots=True)
class KnownFormat:
    """A format by id and title. `object_test` looks at the first JSON object, `text_test` at the head of the text."""

    id: str
    title: str
    object_test: Callable[[Mapping[str, Any]], bool] | None = None
    text_test: Callable[[str], bool] | None = None
    note: str = ""

    def matches(self, content: Content, first: Mapping[str, Any] | None) -> bool:
        if self.object_test is not None and first is not None and self.object_test(first):
            return True
        return self.text_test is not None and self.text_test(content.head)


def _has(*keys: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda d: all(key in d for key in keys)


def _search(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda text: compiled.search(text) is not None


def _trace(d: Mapping[str, Any]) -> bool:
    return isinstance(d.get("traceEvents"), list) or ("ph" in d and "ts" in d)


KNOWN_UNSUPPORTED: tuple[KnownFormat, ...] = (
    KnownFormat(
        "perf-analyzer",
        "a raw perf_analyzer profile",
        _has("experiments", "service_kind"),
        note="Upload profile_export_genai_perf.json, the summary that GenAI-Perf writes beside it.",
    ),
    KnownFormat(
        "rocprof-trace",
        "a rocprof trace in JSON",
        _trace,
        note="Upload the results.stats.csv that stands beside it, or the kernel trace in CSV of rocprofv3.",
    ),
    KnownFormat("rocprofv3", "a rocprofv3 report", _has("rocprofiler-sdk-tool")),
    KnownFormat(
        "rocprof-compute-sysinfo",
        "the system description of rocprof-compute, without a measurement",
        text_test=_search(r"\Aworkload_name,command,"),
        note="Upload the counter file (pmc_perf.csv) beside it.",
    ),
    KnownFormat(
        "llama-cpp-log",
        "a llama.cpp log without a result table",
        text_test=_search(r"\A\s*ggml_(?:cuda_init|vulkan):"),
        note="The benchmark stopped before it printed a result.",
    ),
)
"""In order of recognition, more specific first; JSON before text."""


_CUT_OFF_MARKS: tuple[tuple[str, str], ...] = (
    ("total_output_tokens_retokenized", "an SGLang serving result"),
    ("mean_e2e_latency_ms", "an SGLang serving result"),
    ('"bytebound"', "a file in Bytebound's own format"),
    ("build_commit", "a llama-bench result"),
    ("model_n_params", "a llama-bench result"),
    ("total_token_throughput", "a vLLM serving result"),
    ("total_input_tokens", "a vLLM serving result"),
    ("_ttft_ms", "a vLLM serving result"),
    ("tokenizer_id", "a vLLM serving result"),
    ("traceEvents", "a Chrome trace"),
    ("time_to_first_token_ms", "a GuideLLM report"),
    ("time_to_first_token", "an AIPerf export"),
    ("machine_info", "a pytest-benchmark report"),
    ("real_time", "a google-benchmark report"),
    ("log_history", "a Hugging Face trainer_state.json"),
    ("nccl_version", "an nccl-tests report"),
)
_SGLANG_START = re.compile(r'^\s*\{"tag":[^\n]{0,400}"(?:dataset_name|server_info|sharegpt_output_len)"')


def guess_of_broken_json(head: str) -> str | None:
    """What a damaged JSON text was meant to be, from the key names in its beginning."""
    if _SGLANG_START.match(head):
        return "an SGLang serving result"
    return next((title for mark, title in _CUT_OFF_MARKS if mark in head), None)
