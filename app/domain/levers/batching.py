"""Levers on what a step works on: batches without padding, several tokens a step, adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import Objection, first_of, needs_decoder, needs_pictures, needs_words, only_in
from app.domain.levers.edits import executed, padded, resident, tokens_times

PADDING = ("length-bucketing", "token-budget", "seq-packing", "mm-packing", "attn-varlen")
DRAFTS = ("spec-decode", "mtp")


def _grows_with_tokens(op: Op) -> bool:
    return op.direction != "optimizer" and op.stage not in ("data parallel", "offload")


def _padding(id_: str) -> Callable[[Scenario, Params], Edit]:
    def edit(scenario: Scenario, params: Params) -> Edit:
        factor = 1.0 / (1.0 - params["padding"])
        # a prompt needs the logits of its last token, however long it is padded
        one_position = scenario.workload.phase == "prefill"

        def matches(op: Op) -> bool:
            return _grows_with_tokens(op) and not (one_position and op.stage == "head")

        training = scenario.workload.phase == "train"
        return Edit(id_, padded(matches, factor), resident(activations=factor, logits=factor if training else 1.0))

    return edit


def _packed(id_: str, title: str, padding: float, objection: Objection, how: str) -> Lever:
    return Lever(
        id_,
        title,
        "runtime",
        f"Without it a step works on 1 / (1 - padding) times its tokens {how}.",
        objection,
        lack=_padding(id_),
        memory_lever="pack",
        params=(Param("padding", padding, 0, 0.95, "share of the padded tokens that are padding, without it"),),
        excludes=tuple(name for name in PADDING if name != id_),
    )


def _idle_slots(_: Scenario, params: Params) -> Edit:
    return Edit("continuous-batching", table=tokens_times(1.0 - params["idle"]))


def accepted_tokens(rate: float, drafts: int) -> float:
    """Tokens that one verification emits: (1 - a^(g+1)) / (1 - a) (F-13.6)."""
    return float(drafts + 1) if rate == 1 else (1.0 - rate ** (drafts + 1)) / (1.0 - rate)


def _emits_one(scenario: Scenario) -> str | None:
    w = scenario.workload
    if w.seq_len > 1:
        return f"the step verifies {w.seq_len} tokens a sequence already"
    return "prediction modules draft already" if w.prediction_modules else None


def _drafted(scenario: Scenario, params: Params) -> Scenario:
    drafts = int(params["drafts"])
    cost = params["draft_cost"]
    wider = scenario.with_workload(seq_len=drafts + 1)

    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        wide = drafts + 1.0
        draft: dict[str, Op] = {}
        for op in ops:
            if op.kind == "collective" or not op.dtype:
                continue
            share = cost * op.count
            name = f"draft {op.pipe}"
            sum_ = draft.setdefault(
                name,
                Op(
                    name, "draft", "gemm" if op.pipe == "tensor" else "elementwise",
                    count=float(drafts), pipe=op.pipe, dtype=op.dtype, executed=0.0, launches=0.0,
                    formula="draft_cost of the model's own step for one token a sequence",
                ),
            )  # fmt: skip
            # the draft's FLOP are executed, not useful: what they propose is verified again
            draft[name] = replace(
                sum_,
                executed=executed(sum_) + share * executed(op) / wide,
                exponentials=sum_.exponentials + share * op.exponentials / wide,
                weights=sum_.weights + share * op.weights,
                kv_read=sum_.kv_read + share * op.kv_read,
                kv_write=sum_.kv_write + share * op.kv_write / wide,
                act_read=sum_.act_read + share * op.act_read / wide,
                act_write=sum_.act_write + share * op.act_write / wide,
                launches=sum_.launches + share * op.launches,
            )
        return [*ops, *draft.values()]

    emitted = accepted_tokens(params["acceptance"], drafts)
    return wider.with_edit(
        Edit(
            "spec-decode",
            rows,
            resident(parameters=1.0 + cost, kv_cache=1.0 + cost),
            tokens_times(emitted / (drafts + 1)),
        )
    )


def _predicted(scenario: Scenario, params: Params) -> Scenario:
    prediction = scenario.model.prediction
    assert prediction is not None
    drafts = min(int(params["modules"]), prediction.count)
    wider = scenario.with_workload(seq_len=drafts + 1, prediction_modules=drafts)
    emitted = accepted_tokens(params["acceptance"], drafts)
    return wider.with_edit(Edit("mtp", table=tokens_times(emitted / (drafts + 1))))


def _has_prediction_modules(scenario: Scenario) -> str | None:
    has = scenario.model.prediction is not None
    return None if has else f"{scenario.model.name} has no prediction modules that are described"


def _adapter_rows(per_adapter: bool) -> Callable[[Scenario, Params], Edit]:
    """A low-rank pair beside every dense product of the layers, for each adapter that the batch uses."""

    def edit(_: Scenario, params: Params) -> Edit:
        rank, adapters = params["rank"], params["adapters"]

        def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
            more = []
            used = min(adapters, float(ctx.workload.batch))
            for op in ops:
                if op.kind != "gemm" or op.stage not in ("attention", "mlp") or not op.weights:
                    continue
                inputs = op.act_read / ctx.activation / ctx.tokens
                outputs = op.act_write / ctx.activation / ctx.tokens
                both = inputs + outputs
                more.append(
                    Op(
                        f"adapters of {op.name}", op.stage, "gemm", count=op.count, pipe="tensor", dtype=op.dtype,
                        flop=2.0 * ctx.tokens * rank * both,
                        weights=used * rank * both * 2.0,
                        act_read=ctx.tokens * both * ctx.activation,
                        act_write=ctx.tokens * outputs * ctx.activation,
                        launches=2.0 * (used if per_adapter else 1.0),
                        formula="2 tokens rank (inputs + outputs); weights of the adapters in use",
                    )
                )  # fmt: skip
            return [*ops, *more]

        return Edit("lora-sgmv", rows)

    return edit


_TRAIN_OR_PREFILL = first_of(only_in("train", "prefill"), needs_words)
_RATE = Param("acceptance", 0.8, 0, 1, "probability that a drafted token is accepted")

BATCHING_LEVERS: tuple[Lever, ...] = (
    Lever(
        "continuous-batching",
        "Requests join and leave between steps",
        "runtime",
        "Without it a share of the batch's slots has finished and waits: the step emits that much less (F-4.12).",
        first_of(only_in("decode"), needs_decoder),
        lack=_idle_slots,
        memory_lever="pack",
        params=(Param("idle", 0.5, 0, 0.99, "share of the slots that wait, without it"),),
    ),
    Lever(
        "spec-decode",
        "Speculative decoding",
        "algorithmic",
        "A draft proposes g tokens, one step verifies g + 1 and emits (1 - a^(g+1)) / (1 - a) of them (F-13.6). It"
        " pays while a step waits for weights: a large batch computes more, and more tokens reach more experts.",
        first_of(only_in("decode"), needs_decoder, _emits_one),
        change=_drafted,
        params=(
            Param("drafts", 4, 1, 32, "drafted tokens of a step", whole=True),
            _RATE,
            Param("draft_cost", 0.05, 0, 1, "draft model over the model, in weights, FLOP and cache"),
        ),
        excludes=DRAFTS[1:],
    ),
    Lever(
        "mtp",
        "Multi-token prediction",
        "algorithmic",
        "The model's own modules draft g tokens, one step verifies g + 1 and emits (1 - a^(g+1)) / (1 - a) (F-13.6)."
        " It pays while a step waits for weights: a large batch computes more, and more tokens reach more experts.",
        first_of(only_in("decode"), needs_decoder, _has_prediction_modules, _emits_one),
        change=_predicted,
        params=(Param("modules", 1, 1, 8, "prediction modules that draft, at most those there are", whole=True), _RATE),
        excludes=DRAFTS[:1],
    ),
    Lever(
        "lora-sgmv",
        "All adapters of a batch in one kernel",
        "kernel",
        "Adapters add rank x (inputs + outputs) weights to each product; without it each adapter is launched apart.",
        first_of(only_in("decode"), needs_decoder),
        lack=_adapter_rows(per_adapter=True),
        change=lambda s, p: s.with_edit(_adapter_rows(per_adapter=False)(s, p)),
        memory_lever="pack",
        params=(
            Param("adapters", 16, 1, 10_000, "adapters in use", whole=True),
            Param("rank", 16, 1, 1024, "rank of an adapter", whole=True),
        ),
    ),
    _packed("length-bucketing", "Batches of similar lengths", 0.395, _TRAIN_OR_PREFILL, "(F-12.2)"),
    _packed("token-budget", "Batches filled to a number of tokens", 0.395, _TRAIN_OR_PREFILL, "(F-12.3)"),
    _packed(
        "seq-packing",
        "Several samples in one sequence",
        0.3,
        first_of(only_in("train"), needs_words),
        "(F-12.4); segment masks keep the pairs",
    ),
    _packed(
        "mm-packing",
        "Pictures of any size in one sequence",
        0.3,
        first_of(only_in("train"), needs_pictures),
        "of text and pictures (F-12.4)",
    ),
)
"""Batching, in the order of the technique library."""
