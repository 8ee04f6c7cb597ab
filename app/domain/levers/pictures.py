"""Levers on pictures: towers beside a language model, and denoisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from app.domain.backward import backward_of
from app.domain.blocks.context import StepContext
from app.domain.cost import Op
from app.domain.denoiser import DiffusionTransformer, UNet
from app.domain.errors import InvalidInput
from app.domain.inputs import visual_tokens
from app.domain.levers.base import Edit, Lever, Param, Params, Scenario
from app.domain.levers.conditions import (
    activations_at_least,
    first_of,
    needs_denoiser,
    needs_pictures,
    only_in,
    wider_than,
)
from app.domain.levers.edits import (
    each,
    executed,
    more_traffic,
    net_times,
    resident,
    tokens_times,
    with_traffic,
    written,
)
from app.domain.levers.precision import WEIGHT_FORMATS
from app.domain.precision import PRECISIONS
from app.domain.units import Grid
from app.domain.workload import Workload

PATCH_PARALLEL = ("distrifusion", "pipefusion-xdit")


def _others(own: str, family: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in family if name != own)


# ---- towers ---------------------------------------------------------------------------------------------------------


def _shorter(scenario: Scenario, id_: str, tokens: int) -> Scenario:
    """The prompt with `tokens` visual tokens a sequence: it still counts as the whole one."""
    w = scenario.workload
    now = visual_tokens(scenario.model, w)
    if scenario.model.reads_other_input:
        return scenario.with_workload(visual_tokens=tokens)
    length = w.seq_len - now + tokens
    return scenario.with_workload(visual_tokens=tokens, seq_len=length).with_edit(
        Edit(id_, table=tokens_times(w.seq_len / length))
    )


def _smaller_pictures(scenario: Scenario, params: Params) -> Scenario:
    kept = max(round(visual_tokens(scenario.model, scenario.workload) * params["kept"]), 1)
    return _shorter(scenario, "dyn-resolution", kept)


def _merged(scenario: Scenario, factor: int, param: str) -> Scenario:
    """The tower works as before, but so many more of its tokens become one: a picture of a fixed size has fewer."""
    tower = scenario.model.tower
    assert tower is not None
    one = tower.item_tokens
    if one is not None and one % factor:
        raise InvalidInput(param, f"the {one} tokens of a picture do not divide by {factor}")
    coarser = replace(tower, merge=tower.merge * factor, item_tokens=None if one is None else one // factor)
    return replace(scenario, model=replace(scenario.model, tower=coarser))


def _pruned(scenario: Scenario, params: Params) -> Scenario:
    now, factor = visual_tokens(scenario.model, scenario.workload), int(params["merged"])
    if now % factor:
        raise InvalidInput("merged", f"{now} visual tokens do not divide by {factor}")
    return _merged(_shorter(scenario, "token-prune", now // factor), factor, "merged")


def _resampled(scenario: Scenario, params: Params) -> Scenario:
    now, latents = visual_tokens(scenario.model, scenario.workload), int(params["latents"])
    if latents >= now or now % latents:
        raise InvalidInput("latents", f"must divide the {now} visual tokens of a sequence and be fewer")
    shorter = _merged(_shorter(scenario, "resampler", latents), now // latents, "latents")

    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        cross = Op(
            "resampler",
            "attention",
            "attention",
            count=ctx.runs,
            pipe="tensor",
            dtype=ctx.attention_product,
            flop=4.0 * ctx.batch * latents * now * ctx.hidden,
            act_read=ctx.batch * (2.0 * now + latents) * ctx.hidden * ctx.activation,
            act_write=ctx.batch * latents * ctx.hidden * ctx.activation,
            formula="4 latents visual_tokens hidden",
        )
        return [*ops, cross, *(backward_of(cross, ctx) if ctx.training else ())]

    return shorter.with_edit(Edit("resampler", rows))


def _features_from_store(scenario: Scenario, _: Params) -> Scenario:
    tower = scenario.model.tower
    assert tower is not None
    prefix = f"{tower.modality} "

    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        size = ctx.batch * visual_tokens(ctx.model, ctx.workload) * ctx.hidden * ctx.activation
        load = Op(
            "features from the host",
            "offload",
            "copy",
            count=ctx.runs,
            act_write=size,
            net={"host": size},
            formula="visual_tokens hidden bytes over PCIe",
        )
        return [op for op in ops if not op.name.startswith(prefix)] + [load]

    return scenario.with_edit(Edit("vision-cache", rows))


# ---- denoisers ------------------------------------------------------------------------------------------------------


def _is(kind: type, what: str) -> Callable[[Scenario], str | None]:
    def check(scenario: Scenario) -> str | None:
        denoiser = scenario.model.denoiser
        return None if isinstance(denoiser, kind) else f"{scenario.model.name} is not {what}"

    return check


_UNET = _is(UNet, "a U-net denoiser")
_TRANSFORMER = _is(DiffusionTransformer, "a diffusion transformer")


def _is_group_norm(op: Op) -> bool:
    return op.stage == "norm" and op.formula.startswith("group norm")


def _is_modulated_norm(op: Op) -> bool:
    return op.stage == "norm" and not _is_group_norm(op)


def _flipped_layouts(_: Scenario, __: Params) -> Edit:
    def copies(op: Op, _: StepContext) -> tuple[Grid, Grid, Grid]:
        copied = op.act_read + op.act_write
        return copied, copied, 2.0

    return Edit("channels-last", with_traffic(lambda op: op.stage == "convolution" and op.kind == "gemm", copies))


def _four_bits(scenario: Scenario, params: Params) -> Scenario:
    device = scenario.device or ""
    name = "nvfp4" if device.startswith("sm1") else "int4"
    now, then = scenario.workload.dtypes.bytes_of("weights"), PRECISIONS[name].element_bytes
    rank = params["rank"]

    def rows(op: Op, ctx: StepContext) -> Op:
        if not op.weights or op.dtype != ctx.product:
            return op
        # inputs and outputs of an element of m rows: from the row's own bytes
        matrix = op.weights / now
        inputs_and_outputs = op.act_read / ctx.activation + op.act_write / ctx.activation
        rows_ = op.flop / (2.0 * matrix)
        branch = 2.0 * rank * inputs_and_outputs
        return op.having(
            dtype=name,
            flop=op.flop,
            executed=executed(op) + branch,
            weights=matrix * then + rank * inputs_and_outputs / rows_ * 2.0,
        )

    products = each(lambda op: op.kind == "gemm" and op.stage != "convolution", rows)
    return scenario.with_edit(Edit("svdquant", products, resident(parameters=min(then / now, 1.0))))


def _divided_guidance(scenario: Scenario, _: Params) -> Scenario:
    w = scenario.workload
    return replace(
        scenario, workload=replace(w, batch=w.batch // 2, parallel=replace(w.parallel, dp=w.parallel.dp * 2))
    )


def _runs_pairs(scenario: Scenario) -> str | None:
    batch = scenario.workload.batch
    return None if batch % 2 == 0 else f"a guided picture is two samples of the batch, and {batch} is odd"


def _fewer_steps(scenario: Scenario, params: Params) -> Scenario:
    if params["after"] > params["before"]:
        raise InvalidInput("after", "must be at most the steps before")
    return scenario.with_edit(Edit("few-step", table=tokens_times(params["before"] / params["after"])))


def _cached_steps(id_: str) -> Callable[[Scenario, Params], Scenario]:
    def change(scenario: Scenario, params: Params) -> Scenario:
        share = 1.0 - params["hit"] * (1.0 - params["rest"])
        rows = each(lambda op: op.direction == "forward", lambda op, _: op.having(count=op.count * share))
        return scenario.with_edit(Edit(id_, rows))

    return change


def _cached_prompt(scenario: Scenario, _: Params) -> Scenario:
    def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
        return [op for op in ops if not (op.name.endswith("cross key and value") or op.base.startswith("text "))]

    return scenario.with_edit(Edit("prompt-kv-cache", rows))


def _attends_across(scenario: Scenario) -> str | None:
    denoiser = scenario.model.denoiser
    crosses = isinstance(denoiser, UNet) or (
        isinstance(denoiser, DiffusionTransformer) and denoiser.text_attention == "cross"
    )
    return None if crosses else f"{scenario.model.name} has no cross-attention: its text changes from step to step"


def _patches(id_: str, *, weights: bool) -> Callable[[Scenario, Params], Scenario]:
    """A picture divided over `devices`; with `weights` layers are divided too, and patches pass through them."""

    def change(scenario: Scenario, params: Params) -> Scenario:
        n = params["devices"]

        def rows(ops: list[Op], ctx: StepContext) -> list[Op]:
            out = []
            for op in ops:
                part = op.having(
                    flop=op.flop / n,
                    executed=executed(op) / n,
                    exponentials=op.exponentials / n,
                    weights=op.weights / n if weights else op.weights,
                    act_read=op.act_read / n,
                    act_write=op.act_write / n,
                    net=net_times(op.net, 1.0 / n),
                    net_in_switch=None if op.net_in_switch is None else net_times(op.net_in_switch, 1.0 / n),
                )
                if not weights and op.kind == "attention" and not op.base.endswith("cross-attention"):
                    # each device gets the keys and values of the others' patches
                    foreign = op.act_read * 2.0 / 3.0 * (n - 1.0) / n
                    part = replace(part, act_read=part.act_read + foreign)
                    out.append(
                        Op(
                            f"{op.name} patch exchange", "patch parallel", "collective", count=op.count,
                            net={"scale_up": foreign}, hidden=params["hidden"],
                            formula="keys and values of the other patches",
                        )
                    )  # fmt: skip
                out.append(part)
            if weights:
                size = ctx.tokens * (getattr(ctx.model.denoiser, "hidden", 0) or 0) * ctx.activation
                out.append(
                    Op(
                        "patch hand-over", "patch parallel", "collective", count=(n - 1.0) / n * ctx.runs,
                        net={"scale_up": size}, hidden=params["hidden"], formula="latent tokens hidden to the next",
                    )
                )  # fmt: skip
            return out

        def memory(objects: Mapping[str, float], _: Workload) -> Mapping[str, float]:
            share = 1.0 / n if weights else 1.0
            return {
                **objects,
                "parameters": objects["parameters"] * share,
                "activations": objects["activations"] / n,
            }

        return scenario.with_edit(Edit(id_, rows, memory, lambda table: replace(table, devices=table.devices * n)))

    return change


_DENOISE = first_of(needs_denoiser, only_in("prefill"))
_PICTURES = first_of(only_in("train", "prefill"), needs_pictures)
_HIT = (
    Param("hit", 0.5, 0, 0.99, "share of the steps that reuse features"),
    Param("rest", 0.1, 0, 1, "cost of such a step over that of a whole one"),
)
_PARTS = (
    Param("devices", 2, 2, 64, "devices that share one picture", whole=True),
    Param("hidden", 0.9, 0, 1, "share of the exchange that runs behind the step before"),
)

PICTURE_LEVERS: tuple[Lever, ...] = (
    Lever(
        "dyn-resolution",
        "Pictures at the resolution they need",
        "algorithmic",
        "Visual tokens times the kept share, in tower and language model (F-13.1).",
        _PICTURES,
        change=_smaller_pictures,
        memory_lever="pack",
        params=(Param("kept", 0.5, 0.01, 1, "share of the visual tokens that is kept"),),
    ),
    Lever(
        "resampler",
        "A fixed number of latents for a picture",
        "algorithmic",
        "The language model sees `latents` tokens; a cross-attention of 4 latents x tokens x hidden is added (F-13.1).",
        _PICTURES,
        change=_resampled,
        memory_lever="compress",
        params=(Param("latents", 64, 1, 4096, "latent tokens of a sequence's pictures", whole=True),),
        excludes=("token-prune",),
    ),
    Lever(
        "token-prune",
        "Visual tokens merged behind the tower",
        "algorithmic",
        "So many tokens of the tower more become one token of the language model, from its first layer on (F-13.1).",
        first_of(only_in("prefill"), needs_pictures),
        change=_pruned,
        memory_lever="compress",
        params=(Param("merged", 2, 2, 64, "tokens that become one", whole=True),),
        excludes=("resampler",),
    ),
    Lever(
        "vision-cache",
        "Features of pictures kept",
        "runtime",
        "The tower does not run; its visual_tokens x hidden features come over PCIe.",
        _PICTURES,
        change=_features_from_store,
        excludes=("mm-packing", "window-attn-inkernel"),
    ),
    Lever(
        "groupnorm-silu",
        "Group norm and activation in one kernel",
        "kernel",
        "Without it the normalised picture is written and read once more: four passes instead of two.",
        first_of(_DENOISE, _UNET),
        lack=lambda _s, _p: Edit("groupnorm-silu", more_traffic(_is_group_norm, 1.0, 1.0, 1.0, of=written)),
        memory_lever="dematerialize",
    ),
    Lever(
        "adaln-fusion",
        "Modulated norm and gated residual in one kernel",
        "kernel",
        "Without it norm, modulation, gate and addition are kernels of their own: two tensors written and read more.",
        first_of(_DENOISE, _TRANSFORMER),
        lack=lambda _s, _p: Edit("adaln-fusion", more_traffic(_is_modulated_norm, 1.0, 1.0, 3.0, of=written)),
        memory_lever="dematerialize",
    ),
    Lever(
        "channels-last",
        "Channels as the innermost dimension",
        "kernel",
        "Without it each convolution's input and output are copied into another layout.",
        first_of(only_in("prefill", "train"), _UNET),
        lack=_flipped_layouts,
        memory_lever="pack",
    ),
    Lever(
        "deepcache",
        "Deep features of a U-net reused",
        "algorithmic",
        "The mean step costs 1 - hit + hit x rest of a whole one (F-13.4).",
        first_of(_DENOISE, _UNET),
        change=_cached_steps("deepcache"),
        params=_HIT,
    ),
    Lever(
        "teacache",
        "Output reused while the time step changes little",
        "algorithmic",
        "The mean step costs 1 - hit + hit x rest of a whole one (F-13.4).",
        first_of(_DENOISE, _TRANSFORMER),
        change=_cached_steps("teacache"),
        params=(_HIT[0], replace(_HIT[1], default=0.02)),
    ),
    Lever(
        "few-step",
        "Fewer steps",
        "algorithmic",
        "A step does the work of before / after steps of the picture: its tokens count that much (F-13.4).",
        _DENOISE,
        change=_fewer_steps,
        params=(
            Param("before", 50, 1, 1000, "steps of a picture without it", whole=True),
            Param("after", 8, 1, 1000, "steps of a picture with it", whole=True),
        ),
    ),
    Lever(
        "cfg-parallel",
        "The two samples of guidance on two devices",
        "runtime",
        "Half the batch on twice the devices (F-13.4).",
        first_of(_DENOISE, _runs_pairs),
        change=_divided_guidance,
    ),
    Lever(
        "distrifusion",
        "Patches of a picture on several devices",
        "runtime",
        "Each device works on its patch with all weights; keys and values of the others arrive a step late (F-13.4). A"
        " step that waits for launches or small kernels gains nothing from it.",
        first_of(_DENOISE, _UNET),
        change=_patches("distrifusion", weights=False),
        memory_lever="shard",
        params=_PARTS,
        excludes=_others("distrifusion", PATCH_PARALLEL),
    ),
    Lever(
        "pipefusion-xdit",
        "Patches passed through layers on several devices",
        "runtime",
        "Layers are divided over devices and patches pass through them; each device reads its own weights (F-13.4). A"
        " step that waits for launches or small kernels gains nothing from it.",
        first_of(_DENOISE, _TRANSFORMER),
        change=_patches("pipefusion-xdit", weights=True),
        memory_lever="shard",
        params=_PARTS,
        excludes=_others("pipefusion-xdit", PATCH_PARALLEL),
    ),
    Lever(
        "svdquant",
        "Four bits with a low-rank branch",
        "kernel",
        "Products run in int4 (NVFP4 on Blackwell) with a branch of `rank` in 16 bits; other tensors stay (F-5.6).",
        first_of(_DENOISE, _TRANSFORMER, activations_at_least(16), wider_than("weights", 4.6)),
        change=_four_bits,
        memory_lever="compress",
        params=(Param("rank", 32, 1, 1024, "rank of the branch", whole=True),),
        excludes=_others("svdquant", WEIGHT_FORMATS),
    ),
    Lever(
        "prompt-kv-cache",
        "Keys and values of the prompt computed once",
        "runtime",
        "Products over the text tokens of cross-attention run before the first step, not in each (F-13.4).",
        first_of(_DENOISE, _attends_across),
        change=_cached_prompt,
    ),
)
"""Pictures, in the order of the technique library."""
