"""The lint: one table of checks over a run, pure functions that are evaluated whenever a run is shown.

Only a contradiction is an `error`: numbers of which at least one must be wrong, whatever ran. What makes a number hard
to believe or to use is a `warning`, a hint for a better record is an `info`. All facts that a file merely does not
carry become one finding (app.domain.lint_facts). Nothing here is stored, so no finding outlives the link that it was
made from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from app.domain import lint_facts
from app.domain.kernels import short_name
from app.domain.lint_subject import Subject
from app.domain.precision import PRECISIONS
from app.domain.run import Finding, Metric, Severity
from app.domain.words import time_text

ROUNDING = 1 + 1e-9
RATE_TOLERANCE = 0.02
"""Part by which a rate times the duration may miss the count: clients round, and stop their clocks at other moments."""

FEW_OBSERVATIONS = 1000
"""A 99th percentile of fewer observations rests on under ten of them."""

LATENCIES = (
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_latency_s",
    "latency_s",
    "step_time_s",
    "prefill_time_s",
    "decode_time_s",
    "kernel_time_s",
)
RISING = ("min", "p50", "p75", "p90", "p95", "p99", "p999", "max")
TAILED = ("ttft_s", "tpot_s", "itl_s", "e2e_latency_s")

Said: TypeAlias = tuple[str, tuple[str, ...]]
"""What a check found: the message, and the fields it read."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `rule` is its number in the benchmark lint, `title` what it says in general, `needs` what it reads.

    `look` answers None where all is well or nothing can be said. `severity` is the most it can be; a check that weighs
    its finding (`weigh`) may say less.
    """

    id: str
    rule: str
    severity: Severity
    title: str
    needs: tuple[str, ...]
    look: Callable[[Subject], Said | None]
    technique: str | None = None
    weigh: Callable[[Subject], Severity] | None = None


def lint(subject: Subject) -> tuple[Finding, ...]:
    """Every finding on a run: the reader's own, the analysis', and the table's; errors first, each check once.

    Where the table has a check of the reader's name, the table's finding counts: it knows what people stated since.
    """
    own: list[Finding] = []
    for check in CHECKS:
        said = check.look(subject)
        if said is not None:
            severity = check.severity if check.weigh is None else check.weigh(subject)
            own.append(Finding(check.id, severity, said[0], said[1], check.technique))
    facts = lint_facts.missing_facts(subject)
    if facts is not None:
        own.append(facts)
    tabled = {check.id for check in CHECKS} | {lint_facts.CHECK} | set(REPLACED)
    read = [finding for finding in subject.run.findings if finding.check not in tabled]
    found = dict.fromkeys((*subject.analysis.findings, *own, *read))
    return tuple(sorted(found, key=lambda finding: ORDER.index(finding.severity)))


ORDER: tuple[Severity, ...] = ("error", "warning", "info")


# ---- contradictions -------------------------------------------------------------------------------------------------


def negative_times(metrics: Iterable[Metric]) -> Said | None:
    """A time, rate or count below zero."""
    wrong = tuple(m.key for m in metrics if m.value < 0 and m.name != "loss")
    return (f"Less than nothing: {_listed(wrong)}. A sign or a subtraction is wrong.", wrong) if wrong else None


def disordered(metrics: Iterable[Metric]) -> Said | None:
    """Percentiles that fall, a least value above the mean, a mean above the largest."""
    by_key: dict[tuple[str, str | None], float] = {}
    for metric in metrics:
        by_key.setdefault((metric.name, metric.stat), metric.value)
    wrong: list[str] = []
    for name in dict.fromkeys(name for name, stat in by_key if stat is not None):
        told = [(stat, by_key[name, stat]) for stat in RISING if (name, stat) in by_key]
        wrong += [
            f"{name}.{later}" for (_, low), (later, high) in pairwise(told) if low > high * ROUNDING and high >= 0
        ]
        mean, least, most = (by_key.get((name, stat)) for stat in ("mean", "min", "max"))
        if mean is not None and least is not None and least > mean * ROUNDING and mean >= 0:
            wrong.append(f"{name}.min")
        if mean is not None and most is not None and mean > most * ROUNDING and most >= 0:
            wrong.append(f"{name}.max")
    if not wrong:
        return None
    fields = tuple(dict.fromkeys(wrong))
    return (
        "Statistics contradict each other (they must rise from min over the percentiles to max, with the mean "
        f"between): {_listed(fields)}. Likely reasons: columns were swapped, or they are not of one run.",
        fields,
    )


def rate_mismatch(metrics: Iterable[Metric]) -> Said | None:
    """A rate that, times the duration, is not the count: more than 2 % apart."""
    known: dict[str, float] = {}
    for metric in metrics:
        if metric.stat is None:
            known.setdefault(metric.name, metric.value)
    duration = known.get("duration_s")
    if duration is None or duration <= 0:
        return None
    inputs, outputs = known.get("input_tokens"), known.get("output_tokens")
    counts = {
        "requests_per_s": known.get("requests_completed"),
        "output_tokens_per_s": outputs,
        "input_tokens_per_s": inputs,
        "total_tokens_per_s": None if inputs is None or outputs is None else inputs + outputs,
    }
    wrong: list[str] = []
    said: list[str] = []
    for name, count in counts.items():
        rate = known.get(name)
        if rate is None or count is None or count <= 0:
            continue
        if abs(rate * duration - count) > RATE_TOLERANCE * count:
            wrong.append(name)
            said.append(f"{name} x duration_s is {rate * duration:.6g}, but {count:.6g} were counted")
    if not wrong:
        return None
    return (
        f"Rate, duration and count contradict each other: {'; '.join(said)}. Likely reasons: another unit, a warm-up "
        "that only one of them includes, or failed requests that only one of them counts.",
        tuple(wrong),
    )


def _rates(s: Subject) -> Said | None:
    return rate_mismatch(s.run.metrics)


def _parts_of_a_request(s: Subject) -> Said | None:
    first, whole = s.metric("ttft_s", "mean"), s.metric("e2e_latency_s", "mean")
    if first is None or whole is None or first <= whole * 1.001:
        return None
    return (
        f"The mean time to the first token ({time_text(first)}) is above the mean of the whole request "
        f"({time_text(whole)}). Likely reasons: one of them is in another unit, or of other requests.",
        ("ttft_s.mean", "e2e_latency_s.mean"),
    )


_CRITICAL = ("data_wait_share", "exposed_comm_share", "launch_share", "bubble_share", "opt_share", "gemm_share",
             "attn_share", "pointwise_share", "loss_share", "copy_share")  # fmt: skip
"""Shares of one step on its critical path: they exclude each other, so they cannot add up to more than the step."""


def _parts_of_a_step(s: Subject) -> Said | None:
    shares = {name: value for name in _CRITICAL if (value := s.number(name)) is not None and 0 <= value <= 1}
    if sum(shares.values()) > 1.05:
        return (
            f"Shares of the step add up to {sum(shares.values()):.3g}: overlapped durations were summed, or they are "
            "not of one step.",
            tuple(shares),
        )
    kernels = [k.get("share") for k in s.run.kernels]
    total = math.fsum(float(x) for x in kernels if isinstance(x, (int, float)) and not isinstance(x, bool))
    if math.isfinite(total) and total > 1.05:
        return (f"Shares of the kernels add up to {total:.3g}: overlapped durations were summed.", ("kernels",))
    breakdown, step = s.told("breakdown_s"), s.metric("step_time_s")
    if isinstance(breakdown, Mapping) and step and s.told("breakdown_kind") == "exclusive":
        parts = math.fsum(v for v in breakdown.values() if isinstance(v, (int, float)))
        if parts > 1.05 * step:
            return (
                f"The parts of the step add up to {time_text(parts)}, but it takes {time_text(step)}: overlapped "
                "durations were summed.",
                ("breakdown_s", "step_time_s"),
            )
    return None


def _step_below_its_stream(s: Subject) -> Said | None:
    step = s.metric("step_time_s", "mean", None, "p50")
    if step is None:
        return None
    for name in ("compute_only_s", "exposed_communication_s"):
        stream = s.number(name)
        if stream is not None and step < 0.98 * stream:
            return (
                f"The step ({time_text(step)}) is shorter than a part of it, {name} ({time_text(stream)}): the times "
                "are not of the same region.",
                ("step_time_s", name),
            )
    return None


def _shares_out_of_range(s: Subject) -> Said | None:
    wrong = tuple(
        name
        for name, value in {**s.run.evidence, **s.facts}.items()
        if name.endswith(("_share", "_fraction", "_hit"))
        and isinstance(value, (int, float))
        and not 0 <= value <= 1.001
    )
    if not wrong:
        return None
    return (f"A share lies between 0 and 1, but {_listed(wrong)} does not. Likely reason: written in per cent.", wrong)


def _use_of_the_device(s: Subject) -> Said | None:
    mfu, hfu, mbu = (s.metric(name) for name in ("mfu", "hfu", "mbu"))
    above = tuple(name for name, value in (("mfu", mfu), ("hfu", hfu), ("mbu", mbu)) if value and value > 1)
    if above:
        return (
            f"{_listed(tuple(name.upper() for name in above))} above 1: more than the device can do. Likely reasons: "
            "written in per cent, a peak of another precision, or fewer devices counted than ran.",
            above,
        )
    if mfu is not None and hfu is not None and mfu > hfu * 1.001:
        return (
            f"MFU ({mfu:.3g}) is above HFU ({hfu:.3g}): useful work cannot exceed executed work. The two were swapped, "
            "or skipped work was counted.",
            ("mfu", "hfu"),
        )
    useful, executed = s.number("useful_flop"), s.number("executed_flop")
    if useful is not None and executed is not None and useful > executed * 1.001:
        return (
            "Useful FLOP exceed executed FLOP: the two were swapped, or skipped work was counted.",
            ("useful_flop", "executed_flop"),
        )
    return None


def _tokens(s: Subject) -> Said | None:
    output, total = s.metric("output_tokens_per_s", None), s.metric("total_tokens_per_s", None)
    if output is None or total is None or output <= total * 1.001:
        return None
    return (
        f"Output tokens a second ({output:.6g}) exceed all tokens a second ({total:.6g}): the two were swapped.",
        ("output_tokens_per_s", "total_tokens_per_s"),
    )


def _above_peak(s: Subject) -> Said | None:
    if s.hardware is None:
        return None
    told = s.dtypes.get("activations") or s.dtypes.get("weights")
    peak_name = PRECISIONS[told].peak if told in PRECISIONS else None
    peaks = s.hardware.peak if peak_name is None else {k: v for k, v in s.hardware.peak.items() if k == peak_name}
    measured = max(s.hardware.achievable_flop.values(), default=0.0)
    rate = s.metric("model_flop_per_s_per_device")
    best = max(max(peaks.values(), default=0.0), measured if peak_name is None else 0.0)
    if rate is not None and best and rate > best * 1.02:
        return (
            f"{rate / 1e12:,.4g} TFLOP/s a device, but {s.hardware.name} does at most {best / 1e12:,.4g}"
            f"{f' in {peak_name}' if peak_name else ''}. Likely reasons: all devices were summed, skipped work was "
            "counted, or another device or precision ran.",
            ("model_flop_per_s_per_device", "hardware", "dtypes"),
        )
    bandwidth = s.metric("hbm_bytes_per_s")
    roof = max(s.hardware.memory_bandwidth or 0.0, s.hardware.achievable_memory_bandwidth or 0.0)
    if bandwidth is not None and roof and s.mode != "kernel" and bandwidth > roof * 1.02:
        return (
            f"{bandwidth / 1e9:,.4g} GB/s of memory traffic, but {s.hardware.name} has {roof / 1e9:,.4g}: another "
            "device ran, several were summed, or the cache served it.",
            ("hbm_bytes_per_s", "hardware"),
        )
    return None


_ABOVE = 1.1
"""Clocks may be above those that a peak is stated for; a kernel beyond this is no kernel of the device."""


def _impossible_kernels(s: Subject) -> list[tuple[Mapping[str, Any], float, float, str]]:
    """Kernels above the device: row, its rate, the most there is, and the unit. Bytes count where counters saw them."""
    if s.hardware is None:
        return []
    roof = max(s.hardware.memory_bandwidth or 0.0, s.hardware.achievable_memory_bandwidth or 0.0)
    found = []
    for row in s.run.kernels:
        time, flop, moved = (_positive(row.get(key)) for key in ("time_s", "flop", "hbm_bytes"))
        told = row.get("precision")
        names = {PRECISIONS[told].peak} if told in PRECISIONS else set(s.hardware.peak)
        names |= {"tf32"} if told == "fp32" else set()  # frameworks run fp32 products in tf32
        most = max((s.hardware.peak.get(name, 0.0) for name in names), default=0.0)
        if time and flop and most and flop / time > most * _ABOVE:
            found.append((row, flop / time, most, "FLOP/s"))
        elif time and moved and roof and row.get("work_from") == "counters" and moved / time > roof * _ABOVE:
            found.append((row, moved / time, roof, "B/s"))
    return found


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def _kernels_above_peak(s: Subject) -> Said | None:
    found = _impossible_kernels(s)
    if not found or s.hardware is None:
        return None
    row, rate, most, unit = max(found, key=lambda item: item[1] / item[2])
    name = short_name(str(row.get("name") or "a kernel"))
    many = f" ({len(found)} kernels are above it)" if len(found) > 1 else ""
    reason = (
        "another device ran"
        if row.get("work_from") == "counters"
        else "another device ran, or the shapes are of more work than this kernel does"
    )
    return (
        f"{name} reaches {rate / 1e12:,.4g} T{unit}, but {s.hardware.name} does at most {most / 1e12:,.4g}{many}. "
        f"Likely reasons: {reason}, or its time is wrong.",
        ("kernels", "hardware"),
    )


def _by_counters(s: Subject) -> Severity:
    """Counters that exceed the device contradict it; work that shapes imply may belong to several kernels."""
    return "error" if any(row.get("work_from") == "counters" for row, *_ in _impossible_kernels(s)) else "warning"


def _sparse_peak(s: Subject) -> Said | None:
    rate, mfu = s.metric("model_flop_per_s_per_device"), s.metric("mfu")
    used = s.number("peak_flop_per_s", "peak_flop_per_s_used")
    if used is None and rate and mfu and 0 < mfu <= 1:
        used = rate / mfu
    if s.hardware is None or used is None or str(s.told("sparsity") or "") == "2:4":
        return None
    told = s.dtypes.get("activations") or s.dtypes.get("weights") or "bf16"
    dense = s.hardware.peak.get(PRECISIONS[told].peak) if told in PRECISIONS else None
    if dense is None or not 0.95 <= used / (2 * dense) <= 1.05:
        return None
    return (
        f"The peak behind the MFU is {used / 1e12:,.4g} TFLOP/s, twice the dense {dense / 1e12:,.4g} of "
        f"{s.hardware.name}: a structured-sparsity peak was taken, so the MFU is half of what it should be.",
        ("mfu", "hardware"),
    )


def _memory(s: Subject) -> Said | None:
    allocated, reserved = s.number("memory_allocated_bytes"), s.number("memory_reserved_bytes")
    if allocated is not None and reserved is not None and allocated > reserved * 1.001:
        return ("Allocated memory exceeds reserved memory: the two were swapped.", ("memory_allocated_bytes",))
    capacity = None if s.hardware is None else s.hardware.memory_capacity
    peak = s.metric("peak_memory_bytes", None, "max", "mean")
    if s.hardware is None or capacity is None or peak is None:
        return None
    # a file may add up its devices: what all of them have is the limit, and eight where nobody says how many
    limit = capacity * (s.devices or 8)
    if peak <= limit * 1.02:
        return None
    return (
        f"{peak / 1e9:,.4g} GB of peak memory, but {s.devices or 8} × {s.hardware.name} have {limit / 1e9:,.4g} GB: "
        "another device ran, more of them did, or the unit is another.",
        ("peak_memory_bytes", "hardware", "parallel"),
    )


def _forward_only(s: Subject) -> Said | None:
    passes = str(s.told("passes") or "").lower()
    if s.mode != "train" or passes not in ("forward", "fwd"):
        return None
    return (
        "Only the forward pass was timed: it cannot speak for a training step, which has a backward pass and an "
        "update besides. Name the phase prefill, or time the whole step.",
        ("mode", "passes"),
    )


def _not_synchronised(s: Subject) -> Said | None:
    if s.told("synchronised", "synchronized") not in (False, "false", "no"):
        return None
    return (
        "Device work was timed without synchronisation or events: the times are those of issuing it, not of doing it.",
        ("synchronised",),
    )


# ---- hard to believe or to use --------------------------------------------------------------------------------------


def _tails_missing(s: Subject) -> Said | None:
    if s.mode != "serve" or s.metric("requests_completed", None) == 0 or not s.reports(*TAILED):
        return None
    if any((name, stat) in s.values for name in TAILED for stat in ("p90", "p95", "p99", "p999")):
        return None
    return (
        "No tail percentiles: a serving result is judged by p95 or p99 of TTFT and of the token times.",
        ("ttft_s.p99", "tpot_s.p99", "itl_s.p99"),
    )


def _few_observations(s: Subject) -> Said | None:
    few = [m for m in s.run.metrics if m.stat in ("p99", "p999") and m.count and m.count < FEW_OBSERVATIONS]
    if not few:
        return None
    least = min(m.count or 0 for m in few)
    rests = "is the largest of them" if least <= 100 else f"rests on {max(least // 100, 1)} of them"
    return (
        f"p99 from fewer than {FEW_OBSERVATIONS} observations: of {least} it {rests}.",
        tuple(m.key for m in few),
    )


def _few_repetitions(s: Subject) -> Said | None:
    if s.mode not in ("decode", "prefill", "kernel") or s.run.kernels:  # a profile is taken once
        return None
    count = lint_facts.repetitions(s)
    if count is None or count >= 3:
        return None
    times = "once" if count == 1 else "twice"
    return (f"Measured {times}: noise cannot be told from a change.", ("count",))


def _warm_up(s: Subject) -> Said | None:
    warm = s.number("warmup_iters", "warmup", "num_warmup")
    compiles = s.told("warmup_excludes_compile")
    if compiles in (False, "false", "no"):
        return ("Compilation and autotuning are inside the measurement.", ("warmup_excludes_compile",))
    if warm is None or warm >= 3 or s.mode == "serve":
        return None
    return (f"Warm-up of {warm:.0f}: compilation, autotuning and cold clocks may be in the times.", ("warmup_iters",))


def _noisy(s: Subject) -> Said | None:
    names = ("decode_time_s", "prefill_time_s", "tpot_s", "step_time_s", "kernel_time_s", "latency_s",
             "decode_tokens_per_s", "prefill_tokens_per_s")  # fmt: skip
    if s.mode == "serve":  # requests differ from each other: their spread is no noise
        return None
    for name in names:
        mean, spread = s.metric(name, "mean", None), s.metric(name, "std")
        if mean and spread is not None and spread / abs(mean) > 0.10:
            return (
                f"Noisy: {name} varies by {spread / abs(mean):.0%} of its mean. Repeat it, lock the clocks, look for "
                "other work on the machine.",
                (f"{name}.std", name),
            )
    return None


def _far_mean(s: Subject) -> Said | None:
    for name in ("step_time_s", "tpot_s", "itl_s", "decode_time_s", "latency_s"):
        mean, median = s.metric(name, "mean"), s.metric(name, "p50")
        if mean and median and mean / median > 1.3:
            return (
                f"The mean of {name} is {mean / median:.2g} times its median: a few long ones (starvation, recompiling,"
                " stragglers, prefills in between). Do not quote the median alone.",
                (f"{name}.mean", f"{name}.p50"),
            )
    return None


def _steady_load(s: Subject) -> Said | None:
    if s.mode != "serve" or s.number("input_len_std") != 0 or s.run.workload.request_rate not in (None, "inf"):
        return None
    return (
        "Only a steady load of one shape: serving needs a distribution of lengths, small batches and a long tail.",
        ("input_len_std", "request_rate"),
    )


def _drafts(s: Subject) -> Said | None:
    on = s.told("speculative_decoding", "speculative", "spec_decode")
    if on in (None, False, "false", "off") or s.metric("accepted_tokens_per_step") is not None:
        return None
    if s.number("accept_rate") is not None:
        return None
    return (
        "Speculative decoding was on, and the acceptance is not reported: the result holds only for such text.",
        ("accept_rate",),
    )


def _theoretical_flop(s: Subject) -> Said | None:
    padded = (s.number("padding_fraction") or 0.0) > 0 or s.told("sparsity") is not None
    if not padded or str(s.told("flop_basis", "flops_basis")).lower() != "theoretical":
        return None
    return ("Theoretical FLOP include work that was padded or skipped.", ("flop_basis", "padding_fraction"))


def _padded_tokens(s: Subject) -> Said | None:
    padding = s.number("padding_fraction") or 0.0
    if str(s.told("tokens_basis")).lower() != "padded" or padding <= 0.02:
        return None
    return (
        f"{padding:.0%} of the counted tokens are padding: report real tokens a second.",
        ("tokens_basis", "padding_fraction"),
    )


def _bus(s: Subject) -> Said | None:
    bus, algorithm = s.metric("bus_bandwidth_bytes_per_s"), s.metric("algorithm_bandwidth_bytes_per_s")
    link = None if s.hardware is None or s.hardware.scale_up is None else s.hardware.scale_up.bandwidth
    in_switch = s.hardware is not None and s.hardware.scale_up is not None and s.hardware.scale_up.in_network_reduction
    # in-switch reduction moves fewer bytes than the bus formula counts: up to 2(n-1)/n over 1
    if bus is not None and link and bus > link * (2.0 if in_switch else 1.02):
        return (
            f"Bus bandwidth of {bus / 1e9:,.4g} GB/s is above the link's {link / 1e9:,.4g} GB/s: algorithm and bus "
            "bandwidth were swapped, or another link ran.",
            ("bus_bandwidth_bytes_per_s", "hardware"),
        )
    if bus is not None and algorithm is not None and bus > algorithm * 2.001 and s.told("collective") is None:
        return (
            "Bus bandwidth is more than twice the algorithm bandwidth: no collective has such a factor.",
            ("bus_bandwidth_bytes_per_s", "algorithm_bandwidth_bytes_per_s"),
        )
    return None


def _tokens_and_step(s: Subject) -> Said | None:
    rate, step = s.metric("total_tokens_per_s", None, "mean"), s.metric("step_time_s", "mean", None)
    tokens = s.number("tokens_per_step")
    if s.mode not in ("train", "") or not rate or not step or not tokens:
        return None
    off = rate * step / tokens - 1
    if abs(off) <= 0.03:
        return None
    return (
        f"Throughput times step time is {rate * step:.6g} tokens, but a step has {tokens:.6g}: they disagree by "
        f"{abs(off):.0%}.",
        ("total_tokens_per_s", "step_time_s", "tokens_per_step"),
    )


def _six_pt(s: Subject) -> Said | None:
    length = s.stated.get("seq_len") or s.run.workload.input_len or s.number("seq_len")
    formula = str(s.told("flop_formula") or "").upper().replace(" ", "")
    if s.model is None or not length or formula not in ("6PT", "6NT", "6ND") or length <= 2 * s.model.hidden_size:
        return None
    return (
        f"MFU by 6 x parameters x tokens leaves out attention, which counts at {length:,.0f} tokens and a width of "
        f"{s.model.hidden_size:,}.",
        ("mfu", "flop_formula", "seq_len"),
    )


def _failed(s: Subject) -> Said | None:
    completed, failed = s.metric("requests_completed", None), s.metric("requests_failed", None)
    if completed == 0:
        return (
            "No request succeeded: the zeros in the file are not measurements and were left out.",
            ("requests_completed",),
        )
    if not completed or not failed:
        return None
    return (
        f"{failed:.0f} of {completed + failed:.0f} requests failed; latencies are of the others only.",
        ("requests_failed",),
    )


def _failed_severity(s: Subject) -> Severity:
    return "error" if s.metric("requests_completed", None) == 0 else "warning"


# ---- the table ------------------------------------------------------------------------------------------------------

CHECKS: tuple[Check, ...] = (
    Check("negative-value", "BL-45", "error", "Times, rates and counts are not negative", ("every metric",),
          lambda s: negative_times(s.run.metrics)),
    Check("percentiles-disordered", "BL-45", "error", "Statistics rise from min over the percentiles to max",
          ("every statistic",), lambda s: disordered(s.run.metrics)),
    Check("rate-mismatch", "BL-25", "error", "Rate times duration is the count, within 2 %",
          ("duration_s", "requests_per_s", "output_tokens_per_s", "total_tokens_per_s"), _rates),
    Check("part-above-whole", "BL-12", "error", "Parts of a step add up to no more than the step",
          (*_CRITICAL, "kernels"), _parts_of_a_step),
    Check("step-below-stream", "BL-10", "error", "A step is no shorter than one of its own streams",
          ("step_time_s", "compute_only_s"), _step_below_its_stream),
    Check("ttft-above-latency", "BL-45", "error", "The first token comes before the last",
          ("ttft_s", "e2e_latency_s"), _parts_of_a_request),
    Check("tokens-above-total", "BL-45", "error", "Output tokens are among all tokens",
          ("output_tokens_per_s", "total_tokens_per_s"), _tokens),
    Check("share-out-of-range", "BL-45", "error", "A share lies between 0 and 1", ("evidence",), _shares_out_of_range),
    Check("utilisation", "BL-21", "error", "MFU, HFU and MBU are at most 1, and MFU at most HFU",
          ("mfu", "hfu", "mbu"), _use_of_the_device),
    Check("above-peak", "BL-20", "error", "No rate is above what the device can do",
          ("model_flop_per_s_per_device", "hbm_bytes_per_s", "hardware"), _above_peak),
    Check("kernel-above-peak", "BL-20", "error", "No kernel is above what the device can do", ("kernels", "hardware"),
          _kernels_above_peak, weigh=_by_counters),
    Check("sparse-peak", "BL-22", "error", "MFU is held against the dense peak",
          ("mfu", "model_flop_per_s_per_device", "hardware"), _sparse_peak),
    Check("memory-impossible", "BL-23", "error", "Memory in use is no more than there is",
          ("peak_memory_bytes", "hardware"), _memory),
    Check("forward-only", "BL-06", "error", "A training step has a backward pass", ("mode", "passes"), _forward_only),
    Check("not-synchronised", "BL-30", "error", "Device work is timed with events or synchronisation",
          ("synchronised",), _not_synchronised),
    Check("requests-failed", "BL-45", "error", "Requests succeed", ("requests_completed", "requests_failed"), _failed,
          weigh=_failed_severity),
    Check("percentiles-missing", "BL-33", "warning", "A serving result has tail percentiles", TAILED, _tails_missing),
    Check("few-repetitions", "BL-32", "warning", "A measurement is repeated", ("count", "samples"), _few_repetitions),
    Check("warm-up", "BL-31", "warning", "Warm-up is long enough and outside of the times", ("warmup_iters",),
          _warm_up),
    Check("noisy", "BL-36", "warning", "Repetitions vary by less than a tenth", ("std", "mean"), _noisy),
    Check("steady-load", "BL-05", "warning", "A serving load has a distribution of lengths",
          ("input_len_std", "request_rate"), _steady_load),
    Check("accept-rate", "BL-44", "warning", "Speculative results come with their acceptance",
          ("accepted_tokens_per_step", "accept_rate"), _drafts, technique="spec-decode"),
    Check("theoretical-flop", "BL-03", "warning", "Theoretical FLOP are not quoted with padding or sparsity",
          ("flop_basis", "padding_fraction", "sparsity"), _theoretical_flop),
    Check("padded-tokens", "BL-26", "warning", "Tokens a second are real tokens", ("tokens_basis", "padding_fraction"),
          _padded_tokens, technique="seq-packing"),
    Check("bus-bandwidth", "BL-27", "warning", "Bus bandwidth is at most the link's", ("bus_bandwidth_bytes_per_s",),
          _bus),
    Check("tokens-per-step", "BL-25", "warning", "Throughput, step time and tokens of a step agree within 3 %",
          ("total_tokens_per_s", "step_time_s", "tokens_per_step"), _tokens_and_step),
    Check("six-pt", "BL-28", "warning", "MFU counts attention at long sequences", ("mfu", "flop_formula"), _six_pt),
    Check("few-samples", "BL-34", "info", "p99 rests on a thousand observations", ("count",), _few_observations),
    Check("mean-above-median", "BL-35", "info", "The mean is near the median", ("mean", "p50"), _far_mean),
)  # fmt: skip
"""Every check, errors first. The analysis adds `faster-than-bound` (BL-20) and `does-not-fit` (BL-24)."""

ANALYSIS_CHECKS: tuple[tuple[str, str, Severity, str], ...] = (
    ("faster-than-bound", "BL-20", "error", "No step is faster than its bound"),
    ("does-not-fit", "BL-24", "warning", "Weights, cache and activations fit into the device"),
)

REPLACED: Mapping[str, str] = {
    "negative-latency": "negative-value",
    "all-failed": "requests-failed",
    "some-failed": "requests-failed",
}
"""What readers of formats call a check of the table."""

Group: TypeAlias = tuple[Literal["error", "warning", "info"], str, tuple[Finding, ...]]


def grouped(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """Findings by severity with a heading in words, the gravest first; empty groups left out."""
    words: tuple[tuple[Severity, str], ...] = (
        ("error", "Contradictions"),
        ("warning", "Before you rely on it"),
        ("info", "Good to know"),
    )
    every = tuple(findings)
    groups = ((severity, title, tuple(f for f in every if f.severity == severity)) for severity, title in words)
    return tuple(group for group in groups if group[2])


def _listed(names: tuple[str, ...], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
