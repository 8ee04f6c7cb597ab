"""What a reader must know before trusting a walk: values that contradict each other, a tree that is about something
else, and a step that no device could hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.domain.decision_tree import Evidence, Tree, TreeMetric, Trees, Value
from app.domain.memory import MemoryUse
from app.domain.model import STATE_MIXERS, ModelSpec
from app.domain.words import share_text
from app.services.diagnose_words import limit_words, value_text

ROUNDING = 1e-9
SLACK = 0.02
"""How far sums and limits may be over before they contradict: rounded shares add up to a little above 1 (judgement)."""

PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "the step",
        (
            "data_wait_share", "launch_share", "exposed_comm_share", "bubble_share", "copy_share", "attn_share",
            "gemm_share", "pointwise_share", "opt_share", "scan_share", "permute_share",
        ),
    ),
    ("the step", ("data_wait_share", "encoder_share", "loss_share", "opt_share")),
    ("the generation", ("denoise_share", "vae_share", "text_share")),
)  # fmt: skip
"""Shares of one whole that exclude each other."""

ROOFS = ("mfu", "hfu", "mbu", "gemm_of_peak")
"""Rates over a peak: none is above 1."""

UNDER: tuple[tuple[str, str, str], ...] = (
    ("mfu", "hfu", "recomputed work is executed work too, so HFU is the larger"),
    ("mfu", "achieved_of_bound", "the bound is at least its compute term"),
    ("a2a_share", "exposed_comm_share", "the exposed all-to-all is a part of all exposed communication"),
    ("expert_gemm_share", "gemm_share", "the experts' products are a part of all products"),
    ("prefix_hit", "prefix_repeat", "only what repeats can be found in the cache"),
)
"""(smaller, larger, why): pairs of which the first is never above the second."""

WAITING = ("launch_share", "data_wait_share", "sampling_share", "exposed_comm_share", "bubble_share")
BUSY = ("mfu", "mbu")
"""While the device waits, nothing is computed and nothing read: a share of waiting and a rate add up to 1 at most."""

FACTS = (
    "binding", "devices", "ep_spans_nodes", "kv_byte_share", "batch_over_critical", "visual_token_share",
    "tokens_per_touched_expert", "recompute_share", "bubble_share", "kv_pool_use",
)  # fmt: skip
"""What an estimate knows of its workload; the rest of it is only taken as good."""

APART = 1.5
"""Ratio from which a stated value and a computed one are not the same workload's (judgement)."""

MEASURED_APART = 0.25
"""Relative difference from which a stated and a measured value contradict each other (judgement)."""


@dataclass(frozen=True, slots=True)
class Remark:
    """`names` are the metrics it is about; `scenario` the tree that fits better, for a remark on the tree."""

    kind: Literal["contradiction", "scenario", "memory"]
    text: str
    names: tuple[str, ...] = ()
    scenario: str | None = None


def remark_json(remark: Remark) -> dict[str, Any]:
    return {
        "kind": remark.kind,
        "text": remark.text,
        "metrics": list(remark.names),
        "scenario": remark.scenario,
    }


# ---- values against each other ----------------------------------------------------------------------------------


def contradictions(
    trees: Trees, known: Mapping[str, Evidence], others: Mapping[str, Evidence], words: str
) -> Iterator[Remark]:
    """Of values that somebody stated or measured (`known`), those that cannot all be true, and those that stand against
    what the run or the estimate says (`others`, without the user's word; `words` names it)."""
    metrics = trees.metrics
    numbers = {
        name: float(item.value)
        for name, item in known.items()
        if item.kind in ("user", "measured") and not item.limit and not isinstance(item.value, (bool, str))
    }
    yield from _over_their_roof(metrics, numbers)
    yield from _over_the_whole(metrics, numbers)
    yield from _in_the_wrong_order(metrics, numbers)
    yield from _of_one_device(metrics, known, numbers)
    for name, item in known.items():
        other = others.get(name)
        if item.kind == "user" and other is not None and _differ(item.value, other):
            yield _against(metrics[name], item, other, words)


def _shares(metrics: Mapping[str, TreeMetric], names: tuple[str, ...], numbers: Mapping[str, float]) -> str:
    told = [f"{_small(metrics[name].label)} {share_text(numbers[name])}" for name in names]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _small(label: str) -> str:
    """A label inside a sentence: abbreviations stay as they are."""
    return label if label[:2].isupper() else label[:1].lower() + label[1:]


def _over_their_roof(metrics: Mapping[str, TreeMetric], numbers: Mapping[str, float]) -> Iterator[Remark]:
    over = tuple(name for name in ROOFS if numbers.get(name, 0.0) > 1.0 + ROUNDING)
    if over:
        told = _shares(metrics, over, numbers)
        verb = "is" if len(over) == 1 else "are"
        yield Remark(
            "contradiction",
            f"{_capital(told)} {verb} above what a device can do. The peak (dense or sparse, of which"
            " precision), the count of work or the timing is wrong.",
            over,
        )


def _over_the_whole(metrics: Mapping[str, TreeMetric], numbers: Mapping[str, float]) -> Iterator[Remark]:
    told: set[tuple[str, ...]] = set()
    for whole, parts in PARTS:
        there = tuple(name for name in parts if numbers.get(name, 0.0) > 0)
        total = sum(numbers[name] for name in there)
        if len(there) > 1 and total > 1.0 + SLACK and there not in told:
            told.add(there)
            yield Remark(
                "contradiction",
                f"Shares that exclude each other add up to {share_text(total)} of {whole}:"
                f" {_shares(metrics, there, numbers)}. One of them counts time that another one has, or time that"
                " something hides.",
                there,
            )
    for wait in WAITING:
        for rate in BUSY:
            if wait in numbers and rate in numbers and numbers[rate] <= 1 < numbers[wait] + numbers[rate] - SLACK:
                yield Remark(
                    "contradiction",
                    f"{_capital(_shares(metrics, (wait, rate), numbers))} cannot both be true of one step: nothing is"
                    " computed or read while the device waits.",
                    (wait, rate),
                )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _in_the_wrong_order(metrics: Mapping[str, TreeMetric], numbers: Mapping[str, float]) -> Iterator[Remark]:
    for smaller, larger, why in UNDER:
        if smaller in numbers and larger in numbers and numbers[smaller] > numbers[larger] + SLACK:
            told = _capital(_shares(metrics, (smaller, larger), numbers))
            yield Remark("contradiction", f"{told} contradict each other: {why}.", (smaller, larger))


def _of_one_device(
    metrics: Mapping[str, TreeMetric], known: Mapping[str, Evidence], numbers: Mapping[str, float]
) -> Iterator[Remark]:
    if numbers.get("devices") != 1:
        return
    names = ("exposed_comm_share", "a2a_share", "tp_latency_share", "bubble_share")
    there = tuple(name for name in names if numbers.get(name, 0.0) > 0)
    if there:
        told = _shares(metrics, there, numbers)
        text = f"One device has nobody to exchange with or to wait for, but {told} is stated."
        yield Remark("contradiction", text, ("devices", *there))
    spread = known.get("ep_spans_nodes")
    if spread is not None and spread.value is True:
        text = "One device is stated, and experts that spread beyond one NVLink domain."
        yield Remark("contradiction", text, ("devices", "ep_spans_nodes"))


def _differ(value: Value, other: Evidence) -> bool:
    """Whether a stated value and another source's cannot be meant of the same step."""
    if other.kind == "estimated" and other.name not in FACTS:
        return False
    one, two = value, other.value
    if isinstance(one, (bool, str)) or isinstance(two, (bool, str)):
        return one != two
    if other.limit:
        beyond = float(one) - float(two) if other.limit == "at_most" else float(two) - float(one)
        return other.kind != "estimated" and beyond > max(SLACK, MEASURED_APART * abs(float(two)))
    low, high = sorted((abs(float(one)), abs(float(two))))
    if other.kind == "estimated":
        return high - low > SLACK and high > APART * low
    return high - low > max(SLACK, MEASURED_APART * high)


def _against(metric: TreeMetric, item: Evidence, other: Evidence, words: str) -> Remark:
    theirs = value_text(metric, other.value)
    theirs = f"{limit_words(other.limit, theirs)}{theirs}"
    return Remark(
        "contradiction",
        f"{metric.label} is stated as {value_text(metric, item.value)}; {words} says {theirs} ({other.source})."
        " The walk follows what is stated.",
        (metric.name,),
    )


def too_large(memory: MemoryUse) -> Remark | None:
    """Whether an estimate's step is more than a device holds: its times are then of a step that cannot run."""
    if memory.fits is not False or not memory.capacity:
        return None
    text = (
        f"The step does not fit: it needs {_size(memory.peak)} of a device that has {_size(memory.capacity)}. Its times"
        " are those of a step that cannot run as it is laid out: divide it over more devices, or make it smaller first."
    )
    return Remark("memory", text, ("mem_peak_ratio",))


def _size(value: float) -> str:
    return f"{value / 1e9:.3g} GB"


# ---- the tree against what it is walked for ---------------------------------------------------------------------

PHASE_WORDS: Mapping[str, str] = {"train": "a training step", "prefill": "a prefill", "decode": "a decode step"}
PHASE_OF: Mapping[str, str] = {"dense_train": "train", "prefill": "prefill", "decode": "decode"}


def misfit(trees: Trees, tree: Tree, model: ModelSpec | None, phases: tuple[str, ...], fitting: str) -> Remark | None:
    """Why a tree does not fit what it is walked for, with the one that does; None where it fits.

    `phases` are those that the run or the estimate has a step of, `fitting` the scenario that fits it best.
    """
    if fitting == tree.id:
        return None
    why = _lacks(tree, model, phases)
    better = trees.scenarios[fitting].title
    if why:
        text = f"“{tree.title}” does not fit: {why}. Its questions are about something else; “{better}” fits."
        return Remark("scenario", text, (), fitting)
    has = _has_more(tree, model)
    if has:
        text = f"{has}: “{better}” also asks about that."
        return Remark("scenario", text, (), fitting)
    return None


def _lacks(tree: Tree, model: ModelSpec | None, phases: tuple[str, ...]) -> str:
    if model is not None:
        if (model.denoiser is not None) != (tree.id == "diffusion"):
            return f"{model.name} is {'a' if model.denoiser is not None else 'no'} denoiser of pictures or video"
        if tree.id == "moe" and not model.is_moe:
            return f"{model.name} has no experts"
        if tree.id == "ssm" and not _has_states(model):
            return f"{model.name} has no state-space layers"
        if tree.id == "vlm" and model.tower is None:
            return f"{model.name} has no encoder for pictures or sound"
    wanted = PHASE_OF.get(tree.id)
    if wanted is not None and phases and wanted not in phases:
        return f"what is walked is {PHASE_WORDS.get(phases[0], phases[0])}"
    if tree.id == "vlm" and phases and set(phases) == {"decode"}:
        return "what is walked is a decode step, which no picture enters"
    return ""


def _has_more(tree: Tree, model: ModelSpec | None) -> str:
    """What the model has that the tree never asks about."""
    if model is None or tree.id not in PHASE_OF:
        return ""
    if model.is_moe:
        return f"{model.name} has experts, about whose exchange and load this walk asks nothing"
    if _has_states(model):
        return f"{model.name} has state-space layers, about which this walk asks nothing"
    return ""


def _has_states(model: ModelSpec) -> bool:
    return any(isinstance(mixer, STATE_MIXERS) for _, mixer in model.state_groups())
