"""What the vLLM and SGLang serving clients have in common: latency statistics, per-request arrays, plausibility.

Both write milliseconds in summary fields and seconds in per-request arrays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.domain.lint import LATENCIES, disordered, negative_times, rate_mismatch
from app.domain.run import Finding, Metric, ParsedRun
from app.importers.base import ParsedUpload, Sniff, UnreadableUpload
from app.importers.fields import Fields, as_float, listed
from app.importers.reading import Content, clean

MILLI = 1e-3

LATENCY_METRICS: Mapping[str, str] = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "itl": "itl_s",
    "e2el": "e2e_latency_s",
    "e2e_latency": "e2e_latency_s",
}
"""Both clients mean the same by these: TPOT averages over a request's tokens, ITL is per gap."""

_STATISTIC = re.compile(r"(mean|median|std|min|max|p(\d{1,2}(?:\.\d{1,4})?|100))_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_STAT_OF_WORD = {"mean": "mean", "median": "p50", "std": "std", "min": "min", "max": "max"}
STAT_OF_PERCENTILE: Mapping[float, str] = {
    50.0: "p50",
    75.0: "p75",
    90.0: "p90",
    95.0: "p95",
    99.0: "p99",
    99.9: "p999",
    100.0: "max",
}

DETAIL_ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_RECOMPUTED: tuple[tuple[str, float | None], ...] = (
    ("mean", None),
    ("p50", 50.0),
    ("p90", 90.0),
    ("p95", 95.0),
    ("p99", 99.0),
    ("min", None),
    ("max", None),
    ("std", None),
)

MOST_OTHER_PERCENTILES = 40

FEW_SAMPLES = 1000
"""A 99th percentile of fewer observations rests on under ten of them."""


def sniff_results(
    content: Content, looks_like: Callable[[Mapping[str, Any]], bool], found: Sniff, absent: str
) -> Sniff:
    """What a format of JSON results makes of a file: `found` where one of its first records is a result of it."""
    return found if any(looks_like(fields) for fields in content.first_records) else Sniff(0.0, absent)


def read_results(
    format_id: str,
    content: Content,
    looks_like: Callable[[Mapping[str, Any]], bool],
    read: Callable[[Fields], ParsedRun],
) -> ParsedUpload:
    """The upload of a format whose file holds results and nothing else. Raises what `read_runs` does."""
    runs, notes = read_runs(content, looks_like, read)
    return ParsedUpload(format_id, with_series(runs), tuple(notes))


def read_runs(
    content: Content, looks_like: Callable[[Mapping[str, Any]], bool], read: Callable[[Fields], ParsedRun]
) -> tuple[list[ParsedRun], list[Finding]]:
    """Every result in the JSON of a file, and the notes on the file. Raises UnreadableUpload when there is none."""
    runs: list[ParsedRun] = []
    strangers: list[str] = []
    for record in content.json.records():
        if isinstance(record.value, dict) and looks_like(record.value):
            if len(runs) >= content.limits.max_runs:
                raise UnreadableUpload(
                    "too-large",
                    f"The file holds more than {content.limits.max_runs} results.",
                    hint="Split it into several files.",
                )
            runs.append(read(Fields(record.value, record.prefix)))
        else:
            strangers.append(record.prefix or "/")
    if not runs:
        raise UnreadableUpload("invalid", "No result of this tool is in the file.")
    return runs, [*content.findings(), *content.json.findings(), *stranger_findings(strangers)]


def statistic_name(word: str) -> str | None:
    """`median` is p50, `p99.9` is p999; None for a percentile that the project has no name for."""
    if word in _STAT_OF_WORD:
        return _STAT_OF_WORD[word]
    return (
        STAT_OF_PERCENTILE.get(float(word.removeprefix("p")))
        if re.fullmatch(r"p\d{1,3}(?:\.\d{1,4})?", word, re.ASCII)
        else None
    )


def matches_statistic(key: str) -> bool:
    """Whether a key is one of the clients' latency statistics in milliseconds."""
    return _STATISTIC.fullmatch(key) is not None


def read_statistics(record: Fields, counts: Mapping[str, float | None]) -> dict[str, float]:
    """Read every `{statistic}_{metric}_ms` field. Percentiles that the project has no name for are returned.

    `counts` holds the number of observations by metric, where known.
    """
    others: dict[str, float] = {}
    # Medians first: a file that has both `median_` and `p50_` says the same thing twice.
    for key in sorted(record.fields, key=lambda k: not k.startswith("median")):
        match = _STATISTIC.fullmatch(key)
        if match is None:
            continue
        name = LATENCY_METRICS[match[3]]
        stat = _STAT_OF_WORD.get(match[1]) or STAT_OF_PERCENTILE.get(float(match[2]))
        if stat is not None:
            record.metric(name, key, scale=MILLI, raw_unit="ms", stat=stat, count=counts.get(name))
        elif len(others) < MOST_OTHER_PERCENTILES:
            value = record.number(key)
            if value is not None:
                others[f"{name}.p{match[2]}"] = value * MILLI
    return others


def drop_unobserved(record: Fields, name: str) -> bool:
    """Remove the statistics of a metric that are all zero: the client writes zeros where nothing was observed."""
    of_metric = [m for m in record.metrics if m.name == name]
    if not of_metric or any(m.value != 0.0 for m in of_metric):
        return False
    record.metrics = [m for m in record.metrics if m.name != name]
    return True


def not_observed(record: Fields) -> list[Finding]:
    """Leave out latencies that are zero throughout: outputs of one token have no gap, and the zeros say nothing."""
    dropped = tuple(name for name in ("tpot_s", "itl_s", "e2e_latency_s") if drop_unobserved(record, name))
    if not dropped:
        return []
    return [
        Finding(
            "not-observed",
            "info",
            f"{listed(dropped)}: zero throughout, which the client writes where nothing was observed "
            "(outputs of one token have no gap); left out.",
            dropped,
        )
    ]


# --- per-request arrays --------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # overflow and NaN in a hostile array become non-finite results, which are not kept
def recompute(record: Fields) -> list[Finding]:
    """Fill in statistics that the summary lacks from the per-request arrays, and compare with those it has.

    Failed requests (a text in `errors`) are left out, as the clients do. TPOT is (gaps of a request) / (tokens - 1),
    for requests of at least two tokens; end-to-end is the first token plus all gaps. Percentiles interpolate between
    observations as NumPy does, which is what the clients use.
    """
    ttfts = _list(record, "ttfts")
    itls = _list(record, "itls")
    lengths = _list(record, "output_lens")
    errors = _list(record, "errors")
    if not ttfts and not itls:
        return []
    requests = max(len(ttfts), len(itls))
    failed = [i < len(errors) and isinstance(errors[i], str) and errors[i] != "" for i in range(requests)]
    first = _floats(value for i, value in enumerate(ttfts) if not failed[i])
    gaps_of = [_floats(gaps) if isinstance(gaps, list) and not failed[i] else _EMPTY for i, gaps in enumerate(itls)]
    gaps = np.concatenate(gaps_of) if gaps_of else _EMPTY

    observed: dict[str, tuple[NDArray[np.float64], str]] = {"ttft_s": (first, "ttfts"), "itl_s": (gaps, "itls")}
    if len(itls) == requests and len(ttfts) == requests:
        spans = np.array([float(g.sum()) for g in gaps_of])
        starts = _floats(ttfts)
        good = ~np.array(failed, dtype=bool)
        if len(starts) == requests:
            observed["e2e_latency_s"] = ((starts + spans)[good], "itls")
        tokens = _floats(lengths)
        if len(tokens) == requests:
            several = good & (tokens > 1) & np.array([g.size > 0 for g in gaps_of], dtype=bool)
            observed["tpot_s"] = (spans[several] / (tokens[several] - 1), "itls")

    differing: list[str] = []
    for name, (values, key) in observed.items():
        values = values[np.isfinite(values)]
        if values.size == 0:
            continue
        for stat, percentile in _RECOMPUTED:
            value = _statistic(values, stat, percentile)
            told = record.value(name, stat)
            if told is None:
                record.add(
                    name,
                    value,
                    at=record.at(key),
                    raw=f"computed from {values.size} observations",
                    raw_unit="s",
                    stat=stat,
                    count=values.size,
                )
            elif stat in ("mean", "p50") and abs(told - value) > 0.02 * max(abs(told), abs(value)):
                differing.append(f"{name}.{stat}")
    if not differing:
        return []
    return [
        Finding(
            "details-disagree",
            "warning",
            "The per-request values give other statistics than the summary (more than 2 % apart): "
            f"{listed(tuple(differing))}.",
            tuple(differing),
        )
    ]


_EMPTY: NDArray[np.float64] = np.zeros(0)


def _statistic(values: NDArray[np.float64], stat: str, percentile: float | None) -> float:
    if percentile is not None:
        return float(np.percentile(values, percentile))
    if stat == "mean":
        return float(values.mean())
    if stat == "min":
        return float(values.min())
    if stat == "max":
        return float(values.max())
    return float(values.std())


def _list(record: Fields, key: str) -> list[Any]:
    value = record.raw(key)
    return value if isinstance(value, list) else []


def _floats(values: Iterable[Any]) -> NDArray[np.float64]:
    """Numbers of an array as floats; anything else in it becomes NaN."""
    items = list(values)
    try:
        return np.array(items, dtype=np.float64).reshape(len(items)) if items else _EMPTY
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(item) for item in items])


def _float(item: Any) -> float:
    try:
        return float(item) if isinstance(item, (int, float)) else math.nan
    except OverflowError:
        return math.nan


def add_failures_in_details(record: Fields) -> float | None:
    """Requests with an error text as a metric, where the file lists them; returns their number."""
    errors = record.raw("errors")
    if not isinstance(errors, list) or not errors:
        return None
    failed = float(sum(1 for e in errors if isinstance(e, str) and e != ""))
    record.add(
        "requests_failed", failed, at=record.at("errors"), raw="requests with an error text", raw_unit="requests"
    )
    return failed


def error_texts(record: Fields) -> list[str]:
    """What to say is not kept of the messages of failed requests: they may quote prompts, addresses and paths."""
    errors = record.fields.get("errors")
    texts = isinstance(errors, list) and any(isinstance(e, str) and e != "" for e in errors)
    return ["errors (the messages; failed requests are counted)"] if texts else []


def add_failures_of_asked(record: Fields, asked: float | None, completed: float | None) -> float | None:
    """Requests of `num_prompts` that were not completed as a metric, where there are any; returns their number."""
    if asked is None or completed is None or asked <= completed:
        return None
    failed = asked - completed
    record.add(
        "requests_failed",
        failed,
        at=record.at("num_prompts"),
        raw=record.fields["num_prompts"],
        raw_unit="requests",
    )
    return failed


# --- plausibility --------------------------------------------------------------------------------------------------


def check_latencies(metrics: Iterable[Metric]) -> list[Finding]:
    """Contradictions between the statistics of one metric: negative times, percentiles that fall, min above mean."""
    told = [metric for metric in metrics if metric.name in LATENCIES]
    found = (("negative-latency", negative_times(told)), ("percentiles-disordered", disordered(told)))
    return [Finding(check, "error", said[0], said[1]) for check, said in found if said is not None]


def check_rates(record: Fields) -> list[Finding]:
    """Rates times duration against the counts: more than 2 % apart means the numbers are not of one run."""
    said = rate_mismatch(record.metrics)
    return [] if said is None else [Finding("rate-mismatch", "error", said[0], said[1])]


def check_samples(metrics: Iterable[Metric]) -> list[Finding]:
    """One note for all 99th percentiles that rest on few observations."""
    few = [m for m in metrics if m.stat in ("p99", "p999") and m.count is not None and m.count < FEW_SAMPLES]
    if not few:
        return []
    least = min(m.count or 0 for m in few)
    return [
        Finding(
            "few-samples",
            "info",
            f"p99 from fewer than {FEW_SAMPLES} observations (as few as {least}) rests on under ten of them.",
            tuple(m.key for m in few),
        )
    ]


def check_outcome(completed: float | None, failed: float | None) -> list[Finding]:
    """All requests failed (error), or some did (warning)."""
    if completed == 0:
        return [
            Finding(
                "all-failed",
                "error",
                "No request succeeded: the zeros in the file are not measurements and were left out.",
                ("requests_completed",),
            )
        ]
    if completed and failed:
        return [
            Finding(
                "some-failed",
                "warning",
                f"{failed:.0f} of {completed + failed:.0f} requests failed; latencies are of the others only.",
                ("requests_failed",),
            )
        ]
    return []


def missing_facts(metrics: Iterable[Metric], unknown: Mapping[str, str]) -> list[Finding]:
    """One note that names everything the file does not carry: `unknown` facts (field: words) and tail percentiles."""
    have = {m.key for m in metrics}
    absent = dict(unknown)
    out: list[Finding] = []
    tails = [
        f"{name}.{stat}"
        for name in ("ttft_s", "tpot_s", "itl_s")
        if any(key.startswith(name) for key in have)
        for stat in ("p95",)
        if f"{name}.{stat}" not in have
    ]
    if not any(f"{name}.{stat}" in have for name in ("ttft_s", "tpot_s", "itl_s") for stat in ("p95", "p99")):
        out.append(
            Finding(
                "percentiles-missing",
                "warning",
                "The file has no tail percentiles: a serving result needs p95 or p99 of TTFT and of the token times.",
                ("ttft_s.p99", "tpot_s.p99", "itl_s.p99"),
            )
        )
    elif tails:
        absent |= dict.fromkeys(tails, "p95")
    if absent:
        out += facts_finding(absent)
    return out


def facts_finding(absent: Mapping[str, str]) -> list[Finding]:
    """The one note on facts that are not in the file (field: words)."""
    return [
        Finding(
            "missing-facts",
            "info",
            f"Not in the file: {', '.join(dict.fromkeys(absent.values()))}. "
            "Add what you know, so that the run can be compared.",
            tuple(absent),
        )
    ]


# --- the run around the numbers ------------------------------------------------------------------------------------


def request_rate(record: Fields) -> float | str | None:
    """Requests per second asked for; "inf" means that all were sent at once, and is a label rather than a number."""
    value = record.fields.get("request_rate")
    number = as_float(value)
    if number is not None and not math.isfinite(number):
        record.ignore("request_rate")
        # A bare NaN says nothing; only infinity is a load.
        text = str(value).strip().lower()
        if "inf" in text:
            return "inf"
        record.non_finite.append("request_rate")
        return None
    return record.metric("request_rate_per_s", "request_rate", raw_unit="req/s")


def mean_length(total: float | None, requests: float | None) -> float | None:
    """Mean tokens of a request."""
    if total is None or requests is None or requests <= 0 or total < 0:
        return None
    mean = total / requests
    return mean if math.isfinite(mean) else None


def run_name(model: str | None, rate: float | str | None, concurrency: float | None) -> str:
    """`Llama-3.1-8B, 10 req/s, 8 at once`: what tells the runs of a sweep apart."""
    parts = [model.rsplit("/", 1)[-1] if model else "serving run"]
    if isinstance(rate, float):
        parts.append(f"{rate:g} req/s")
    elif rate is not None and concurrency is None:
        parts.append("all at once")
    if concurrency is not None:
        parts.append(f"{concurrency:g} at once")
    return ", ".join(parts)


def with_series(runs: Sequence[ParsedRun]) -> tuple[ParsedRun, ...]:
    """Give each run the values by which the runs of the file differ, so that a sweep can be charted."""
    columns = [_series_candidates(run) for run in runs]
    varying = [
        key
        for key in dict.fromkeys(chain.from_iterable(columns))
        if len(runs) == 1 or len({c.get(key) for c in columns}) > 1
    ]
    keep = set(varying) & (_LOAD_KEYS if len(runs) == 1 else set(varying))
    return tuple(
        replace(run, series={key: value for key, value in column.items() if key in keep})
        for run, column in zip(runs, columns, strict=True)
    )


_LOAD_KEYS = {"concurrency", "request_rate"}


def _series_candidates(run: ParsedRun) -> dict[str, float | str]:
    workload = run.workload
    out: dict[str, float | str] = {}
    for key, value in (
        ("concurrency", workload.concurrency),
        ("request_rate", workload.request_rate),
        ("batch", workload.batch),
        ("input_len", workload.input_len),
        ("output_len", workload.output_len),
    ):
        if value is not None:
            out[key] = value
    out |= {key: float(degree) for key, degree in run.parallel.items()}
    tags = workload.extra.get("tags", {})
    for key, value in tags.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out.setdefault(key, float(value))
        elif isinstance(value, str):
            out.setdefault(key, value)
    return out


def stranger_findings(pointers: Sequence[str]) -> list[Finding]:
    """A note on values of the file that are not results of its format."""
    if not pointers:
        return []
    shown = ", ".join(p.rstrip(": ") for p in pointers[:5])
    return [
        Finding(
            "not-a-result",
            "warning",
            f"{len(pointers)} value(s) of the file are no results of this format and were left out ({shown}).",
        )
    ]


def left_out_findings(names: Sequence[str]) -> list[Finding]:
    """Say what is not kept of a run: texts of people, and anything that looks like a credential."""
    if not names:
        return []
    cleaned = tuple(clean(name, 80) for name in names)
    return [
        Finding(
            "left-out",
            "info",
            f"Not kept with the run, because it may be private: {listed(cleaned)}.",
            cleaned,
        )
    ]
