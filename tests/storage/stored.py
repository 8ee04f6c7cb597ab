"""Ready-made stored things that several tests need."""

from __future__ import annotations

from datetime import UTC, datetime

from app.domain.run import Finding, Metric, ParsedRun, RunWorkload
from app.storage import runs, uploads
from app.storage.records import StoredRun
from app.storage.store import Storage

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def parsed_run(name: str = "serving", *, ttft: float = 0.25, **changes: object) -> ParsedRun:
    values: dict[str, object] = {
        "name": name,
        "metrics": (
            Metric("ttft_s", ttft, "p99", pointer="/p99_ttft_ms", raw="250.0", raw_unit="ms", count=200),
            Metric("output_tokens_per_s", 1234.5, pointer="/output_throughput", raw="1234.5"),
        ),
        "workload": RunWorkload(mode="serve", concurrency=8.0, dtypes={"weights": "bf16"}, extra={"a": [1, {"b": 2}]}),
        "model_hint": "meta-llama/Llama-3.1-8B-Instruct",
        "hardware_hint": "NVIDIA H100 80GB HBM3",
        "parallel": {"tp": 2},
        "software": {"engine": "vllm"},
        "kernels": ({"name": "gemm", "time_s": 0.001},),
        "samples": {"itl_s": (0.01, 0.02)},
        "evidence": {"data_wait_share": 0.02},
        "measured_at": "2026-11-28 10:00:00",
        "notes": "warm cache",
        "series": {"concurrency": 8.0},
        "findings": (Finding("percentiles-missing", "warning", "no p99 of itl", ("itl_s",)),),
    }
    return ParsedRun(**{**values, **changes})  # type: ignore[arg-type]


def add_runs(storage: Storage, *parsed: ParsedRun, data: bytes = b'{"a": 1}', **links: object) -> list[StoredRun]:
    """One upload with these runs (one default run without any)."""
    with storage.write() as session:
        upload, _ = uploads.add_or_get(
            session=session, blobs=storage.blobs, data=data, file_name="result.json", format="vllm-bench-serve"
        )
        return [
            runs.add_run(
                session=session,
                upload_id=upload.id,
                position=position,
                parsed=one,
                format="vllm-bench-serve",
                **links,  # type: ignore[arg-type]
            )
            for position, one in enumerate(parsed or (parsed_run(),))
        ]
