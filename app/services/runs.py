"""One stored run: what it is linked to, its analysis and findings, its metrics in groups, and its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.catalog.calibration import load_calibration
from app.domain.hardware import HardwareProfile
from app.domain.lint import lint
from app.domain.lint_facts import Fact, missing
from app.domain.lint_subject import Subject
from app.domain.model import ModelSpec
from app.domain.run import HIGHER_IS_BETTER, LOWER_IS_BETTER, METRIC_UNITS, STATS, Finding, Metric, ParsedRun
from app.domain.run_analysis import MeasuredAgainstBound, analyse_run
from app.domain.series import Series, series_of
from app.services.acknowledgements import acknowledged_of
from app.services.context import Context
from app.services.links import Kind, LinkBasis, bases_of
from app.services.references import own_hardware, own_model, own_names
from app.services.upload_run import merged_fields
from app.storage import runs
from app.storage.errors import NotFound
from app.storage.records import Acknowledgement, RunSummary, StoredRun, StoredUpload

SEVERITIES = ("error", "warning", "info")

METRIC_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Latency",
        (
            "ttft_s",
            "tpot_s",
            "itl_s",
            "e2e_latency_s",
            "step_time_s",
            "prefill_time_s",
            "decode_time_s",
            "latency_s",
            "kernel_time_s",
        ),
    ),
    (
        "Throughput",
        (
            "output_tokens_per_s",
            "total_tokens_per_s",
            "input_tokens_per_s",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "peak_output_tokens_per_s",
            "tokens_per_s_per_device",
            "output_tokens_per_s_per_device",
            "output_tokens_per_s_per_user",
            "requests_per_s",
            "goodput_requests_per_s",
            "samples_per_s",
            "model_flop_per_s_per_device",
            "hbm_bytes_per_s",
            "bus_bandwidth_bytes_per_s",
            "algorithm_bandwidth_bytes_per_s",
            "accepted_tokens_per_step",
        ),
    ),
    (
        "Use of the device",
        (
            "mfu",
            "hfu",
            "mbu",
            "peak_memory_bytes",
            "reserved_memory_bytes",
            "device_memory_bytes",
            "kv_cache_bytes",
            "power_w",
            "energy_j",
        ),
    ),
)
"""Metrics by what they say; every other one describes the load."""

LOAD_GROUP = "Load"

EXPECTED_METRICS: Mapping[str, tuple[str, ...]] = {
    "serve": (
        "ttft_s.p50",
        "ttft_s.p95",
        "ttft_s.p99",
        "tpot_s.p50",
        "tpot_s.p99",
        "itl_s.p99",
        "e2e_latency_s",
        "output_tokens_per_s",
        "requests_failed",
        "peak_memory_bytes",
        "power_w",
    ),
    "decode": ("tpot_s", "decode_tokens_per_s", "peak_memory_bytes", "power_w"),
    "prefill": ("prefill_time_s", "prefill_tokens_per_s", "peak_memory_bytes", "power_w"),
    "train": ("step_time_s", "total_tokens_per_s", "mfu", "loss", "peak_memory_bytes", "power_w"),
}
"""What a reader looks for in a run of each mode, so that the page can say what the file does not report."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric with the statistics that the file reports; `plain` is a value without a statistic."""

    name: str
    unit: str
    plain: Metric | None
    stats: Mapping[str, Metric]
    better: str


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A metric of the run beside its baseline's. `change` is how much better (above 0) or worse the run is."""

    key: str
    unit: str
    value: float
    baseline: float
    change: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its page and the API show it."""

    run: StoredRun
    hardware: HardwareProfile | None
    model: ModelSpec | None
    stated: Mapping[str, Any]
    analysis: MeasuredAgainstBound
    findings: tuple[Finding, ...]
    acknowledged: Mapping[Finding, Acknowledgement]
    metric_groups: tuple[tuple[str, tuple[MetricRow, ...]], ...]
    not_reported: tuple[str, ...]
    siblings: tuple[RunSummary, ...]
    baseline: RunSummary | None
    missing: tuple[Fact, ...]
    series: Series
    bases: Mapping[Kind, LinkBasis]

    @property
    def against_baseline(self) -> tuple[BaselineRow, ...]:
        """Headline metrics that both report and that have a better direction."""
        if self.baseline is None:
            return ()
        rows = []
        for key, value in self.run.headline.items():
            before = self.baseline.headline.get(key)
            name = key.partition(".")[0]
            if before is None or name not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
                continue
            change = None
            if before:
                change = (before - value if name in LOWER_IS_BETTER else value - before) / abs(before)
            rows.append(BaselineRow(key, METRIC_UNITS[name], value, before, change))
        return tuple(rows)

    @property
    def parallel(self) -> dict[str, Any]:
        """The layout as the file and people state it; the main row's where nobody does."""
        told = {**self.run.parsed.parallel, **dict(self.stated.get("parallel") or {})}
        return {key: value for key, value in told.items() if value is not None}


def get_view(ctx: Context, run_id: str) -> RunView:
    """Everything about one run. Raises NotFound."""
    with ctx.storage.read() as session:
        run = runs.get_run(session=session, run_id=run_id)
        siblings = runs.runs_of_upload(session=session, upload_id=run.upload_id)
        baseline = (
            runs.get_summary(session=session, run_id=run.baseline_run_id) if run.baseline_run_id is not None else None
        )
    return view_of(ctx, run, siblings, baseline)


def view_of(
    ctx: Context, run: StoredRun, siblings: Sequence[RunSummary] = (), baseline: RunSummary | None = None
) -> RunView:
    """The view of a run that is read already."""
    hardware, model, lost = linked(ctx, run)
    stated = stated_fields(ctx, run)
    analysis = analyse_run(run.parsed, hardware, model, stated, load_calibration(), evidence_of(run))
    subject = Subject(run.parsed, hardware, model, stated, run.facts, analysis)
    findings = sorted(
        (*lint(subject), *lost, *run.upload.findings), key=lambda finding: SEVERITIES.index(finding.severity)
    )
    findings = list(dict.fromkeys(findings))
    return RunView(
        run=run,
        hardware=hardware,
        model=model,
        stated=stated,
        analysis=analysis,
        findings=tuple(findings),
        acknowledged=acknowledged_of(run, findings),
        metric_groups=grouped_metrics(run.parsed.metrics),
        not_reported=_not_reported(run.parsed),
        siblings=tuple(siblings),
        baseline=baseline,
        missing=missing(subject),
        series=series_of_run(ctx, run),
        bases=bases_of(ctx, run, run.parsed.workload.parameters),
    )


def linked(ctx: Context, run: RunSummary) -> tuple[HardwareProfile | None, ModelSpec | None, list[Finding]]:
    """The linked profile and model; a link to what does not exist (any more) is a finding."""
    hardware: HardwareProfile | None = None
    model: ModelSpec | None = None
    lost: list[Finding] = []
    if run.hardware_id is not None:
        hardware = ctx.catalog.hardware.get(run.hardware_id) or own_hardware(ctx, run.hardware_id)
        if hardware is None:
            lost.append(_lost("hardware", run.hardware_id))
    if run.model_id is not None:
        model = ctx.catalog.models.get(run.model_id) or own_model(ctx, run.model_id)
        if model is None:
            lost.append(_lost("model", run.model_id))
    return hardware, model, lost


def _lost(field: str, id_: str) -> Finding:
    return Finding(
        "link-lost", "warning", f"The run is linked to {id_!r}, which does not exist: link another.", (field,)
    )


def stated_fields(ctx: Context, run: StoredRun) -> dict[str, Any]:
    """Workload fields that people state: those of the saved workload, and the run's own over them."""
    return merged_fields(ctx, run.workload_id, run.workload_overrides)


def series_of_run(ctx: Context, run: StoredRun) -> Series:
    """The series that a run belongs to, by what is linked and stated now."""
    return series_of(
        run.parsed,
        name=run.name,
        format=run.format,
        hardware=run.hardware_id,
        model=run.model_id,
        stated=stated_fields(ctx, run),
        tags=run.tags,
        series_name=run.series_name,
    )


def evidence_of(run: StoredRun) -> dict[str, float]:
    """Facts that people added and that are numbers: shares of a step, as a file's own evidence."""
    return {key: float(value) for key, value in run.facts.items() if isinstance(value, (int, float))}


def grouped_metrics(metrics: Sequence[Metric]) -> tuple[tuple[str, tuple[MetricRow, ...]], ...]:
    """Metrics by group in a fixed order, one row for each name. The first value of a key counts."""
    by_name: dict[str, dict[str | None, Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, {}).setdefault(metric.stat, metric)
    placed = {name for _, names in METRIC_GROUPS for name in names}
    rest = tuple(name for name in METRIC_UNITS if name not in placed)
    groups = []
    for title, names in (*METRIC_GROUPS, (LOAD_GROUP, rest)):
        rows = tuple(
            MetricRow(
                name=name,
                unit=METRIC_UNITS[name],
                plain=by_name[name].get(None),
                stats={stat: by_name[name][stat] for stat in STATS if stat in by_name[name]},
                better="lower" if name in LOWER_IS_BETTER else "higher" if name in HIGHER_IS_BETTER else "",
            )
            for name in names
            if name in by_name
        )
        if rows:
            groups.append((title, rows))
    return tuple(groups)


def _not_reported(run: ParsedRun) -> tuple[str, ...]:
    wanted = EXPECTED_METRICS.get(run.workload.mode or "", ())
    keys = {metric.key for metric in run.metrics} | {metric.name for metric in run.metrics}
    return tuple(key for key in wanted if key not in keys)


def raw_file(ctx: Context, run_id: str) -> tuple[StoredUpload, Path]:
    """The upload of a run and the file with its bytes as they came. Raises NotFound."""
    with ctx.storage.read() as session:
        upload = runs.get_run(session=session, run_id=run_id, with_kernels=False).upload
    if not ctx.storage.blobs.exists(upload.sha256):
        raise NotFound("file", upload.sha256)
    return upload, ctx.storage.blobs.path(upload.sha256)


def known_names(ctx: Context) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(id, name) of every profile and of every model a run can be linked to, by name."""
    hardware, models = own_names(ctx)
    profiles = sorted(((p.id, p.name) for p in ctx.catalog.hardware.values()), key=lambda item: item[1].casefold())
    shipped = sorted(((m.id, m.name) for m in ctx.catalog.models.values()), key=lambda item: item[1].casefold())
    return [*hardware, *profiles], [*models, *shipped]
