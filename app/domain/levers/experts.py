"""Levers on mixtures of experts: grouped products, permutation, dispatch, balance and overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.blocks.mlp import dispatched_bytes, sent_copies
from app.domain.cost import Op, Tier
from app.domain.errors import InvalidInput
from app.domain.levers.attention import effort_lever
from app.domain.levers.base import Edit, Lever, Param, Params, RowEdit, Scenario
from app.domain.levers.conditions import (
    Objection,
    activations_at_least,
    experts_of,
    first_of,
    launches_one_by_one,
    needs_experts,
    needs_more_than_one,
    needs_nvidia,
    needs_shared_expert,
    only_in,
    wider_than,
)
from app.domain.levers.edits import (
    each,
    hidden,
    in_order,
    is_expert_exchange,
    is_expert_product,
    more_resident,
    named,
    padded,
)
from app.domain.model import MoeMlp
from app.domain.overlap import dualpipe_objection
from app.domain.units import Grid
from app.domain.workload import Workload

PERMUTATIONS = ("permute-fusion", "scattermoe", "sonicmoe")
DISPATCHERS = ("deepep", "hybridep", "ag-rs-dispatch")
EXCHANGE_OVERLAP = ("shared-expert-overlap", "fwd-bwd-overlap", "dualpipe", "comet", "moe-megakernel")


def _others(own: str, family: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in family if name != own)


def _experts(ctx: StepContext) -> MoeMlp:
    return next(group.mlp for group in ctx.model.layers if isinstance(group.mlp, MoeMlp))


def _is_expert_work(op: Op) -> bool:
    """Rows that grow with the token copies that experts get."""
    return is_expert_product(op) or op.in_layer in (
        "expert activation",
        "permute",
        "unpermute",
        "dispatch",
        "combine",
    )


def _saved_copies(
    scenario: Scenario, *, tokens_in: bool = False, tokens_out: bool = False
) -> Callable[[Workload], float]:
    """Bytes of the tensors of copies x hidden that training keeps on the device in the expert layers (F-6.7): what goes
    into the experts and what comes out of them."""

    def size(workload: Workload) -> float:
        p = workload.parallel
        again = workload.recomputed
        if workload.phase != "train" or again & {"layer", "moe_layer"}:
            return 0.0
        if {"moe_experts", "layer"} & set(workload.offload.activations):
            return 0.0
        widths = float(tokens_in) + float(tokens_out and "moe_experts" not in again)
        copies = 0.0
        for group in scenario.model.layers:
            if isinstance(group.mlp, MoeMlp):
                width = group.mlp.latent_size or scenario.model.hidden_size
                copies += group.count * group.mlp.top_k * width
        spread = p.tp * p.cp if p.ep > 1 or p.etp > 1 else p.cp
        tokens = workload.new_tokens / spread
        return widths * tokens * copies * workload.dtypes.bytes_of("activations") / p.pp

    return size


def _one_by_one(_: Scenario, __: Params) -> Edit:
    def rows(op: Op, ctx: StepContext) -> Op:
        held = _experts(ctx).experts / ctx.layout.ep
        return op.having(launches=op.launches * held)

    return Edit("grouped-gemm", each(is_expert_product, rows))


def _with_capacity(_: Scenario, params: Params) -> Edit:
    return Edit(
        "dropless-blocksparse",
        padded(_is_expert_work, params["capacity"]),
    )


def _fixed_capacity(scenario: Scenario, params: Params) -> Scenario:
    graph = scenario.with_workload(launch_mode="graph")
    return graph.with_edit(Edit("capacity-graph", padded(_is_expert_work, params["capacity"])))


def _gathered_in_products() -> RowEdit:
    """No permuted copy: the products gather their rows, and the second one adds into place."""

    def rows(op: Op, _: StepContext) -> Op:
        return op.having(act_read=0.0, act_write=0.0, launches=0.0)

    return each(named("permute"), rows)


def _without_outputs() -> RowEdit:
    """Scores weigh what goes into the second expert product, so their gradients need no outputs of the experts."""

    def rows(op: Op, _: StepContext) -> Op:
        return op.having(act_read=op.act_read - op.act_write) if op.direction == "backward" else op

    return each(named("unpermute"), rows)


def _scatter(scenario: Scenario, _: Params) -> Scenario:
    return scenario.with_edit(
        Edit(
            "scattermoe",
            _gathered_in_products(),
            more_resident("activations", _less(_saved_copies(scenario, tokens_in=True))),
        )
    )


def _less(size: Callable[[Workload], float]) -> Callable[[Workload], float]:
    return lambda workload: -size(workload)


def _sonic(scenario: Scenario, _: Params) -> Scenario:
    return scenario.with_edit(
        Edit(
            "sonicmoe",
            in_order(_gathered_in_products(), _without_outputs()),
            more_resident("activations", _less(_saved_copies(scenario, tokens_in=True, tokens_out=True))),
        )
    )


def _score_first(scenario: Scenario, _: Params) -> Scenario:
    return scenario.with_edit(
        Edit(
            "mem-eff-permutation",
            _without_outputs(),
            more_resident("activations", _less(_saved_copies(scenario, tokens_out=True))),
        )
    )


def _in_16_bits(scenario: Scenario) -> str | None:
    reason = activations_at_least(16)(scenario)
    return None if reason is None else f"Megatron, which publishes it, runs it in 16 bits only, and {reason}"


def _keeps_activations(scenario: Scenario) -> str | None:
    return "full recomputation keeps no expert outputs" if "layer" in scenario.workload.recomputed else None


def _permute_apart(_: Scenario, __: Params) -> Edit:
    def rows(op: Op, _: StepContext) -> Op:
        if op.in_layer == "permute":
            # every copy is read on its own
            more = np.maximum(op.act_read, op.act_write) - np.minimum(op.act_read, op.act_write)
            return op.having(act_read=op.act_read + more, launches=op.launches + 4.0)
        # weighted copies are written and read again before they are added up
        copies = op.act_write if op.direction == "backward" else op.act_read
        return op.having(act_read=op.act_read + copies, act_write=op.act_write + copies, launches=op.launches + 2.0)

    return Edit("permute-fusion", each(named("permute", "unpermute"), rows))


def _every_copy(id_: str) -> Callable[[Scenario, Params], Edit]:
    def edit(_: Scenario, params: Params) -> Edit:
        def rows(op: Op, ctx: StepContext) -> Op:
            scheme = replace(ctx.workload.dispatch, scheme="all_to_all")
            apart = replace(ctx, workload=replace(ctx.workload, dispatch=scheme))
            near, far = sent_copies(apart, _experts(ctx))
            forward = op.in_layer == "dispatch" and op.direction != "backward"
            size = _sent_once(op, ctx) * (dispatched_bytes(ctx) if forward else ctx.wire)
            net: dict[Tier, Grid] = {
                "scale_up": np.maximum(op.net.get("scale_up", 0.0), size * near),
                "scale_out": np.maximum(op.net.get("scale_out", 0.0), size * far),
            }
            return op.having(net={**op.net, **net}, effort=op.effort * params["slower"])

        return Edit(id_, each(is_expert_exchange, rows))

    return edit


def _sent_once(op: Op, ctx: StepContext) -> Grid:
    """Elements of the tokens that a rank sends to experts in a row, one copy each. A module that drafts sends one token
    a sequence."""
    width = _experts(ctx).latent_size or ctx.hidden
    tokens = ctx.batch if ctx.decoding and op.in_layer != op.base else ctx.replica_tokens
    return tokens / (ctx.layout.tp * ctx.layout.cp) * width


def _dispatched(scenario: Scenario, **changes: object) -> Scenario:
    return scenario.with_workload(dispatch=replace(scenario.workload.dispatch, **changes))  # type: ignore[arg-type]


def _gathered_everywhere(scenario: Scenario, _: Params) -> Scenario:
    placed = each(named("permute"), lambda op, _: op.having(launches=0.0))
    return _dispatched(scenario, scheme="all_gather").with_edit(Edit("ag-rs-dispatch", placed))


def _few_ranks(scenario: Scenario) -> str | None:
    ep = scenario.workload.parallel.ep
    k = max((m.top_k for m in experts_of(scenario)), default=0)
    return None if ep <= 2 * k else f"with {ep} ranks and {k} experts a token it sends {ep / k:.3g} times as much"


def _fp8_out(scenario: Scenario, _: Params) -> Scenario:
    return _dispatched(scenario, dtype="fp8")


def _few_nodes(scenario: Scenario, params: Params) -> Scenario:
    return _dispatched(scenario, node_limit=int(params["nodes"]))


def _is_skewed(scenario: Scenario) -> str | None:
    kind = scenario.workload.routing.kind
    return None if kind in ("zipf", "histogram") else f"routing is {kind}: there is no skew to remove"


def _no_router_skew(scenario: Scenario, _: Params) -> Scenario:
    w = scenario.workload
    return scenario.with_workload(routing=replace(w.routing, kind="random", tokens_per_expert=()))


def _replicas(scenario: Scenario, params: Params) -> Scenario:
    copies = int(params["copies"])
    if copies % scenario.workload.parallel.ep:
        raise InvalidInput("copies", f"{copies} copies do not divide over {scenario.workload.parallel.ep} ranks")
    return _dispatched(scenario, replicas=copies)


def _behind(id_: str, *, share: str = "hidden") -> Callable[[Scenario, Params], Scenario]:
    def change(scenario: Scenario, params: Params) -> Scenario:
        return scenario.with_edit(Edit(id_, hidden(is_expert_exchange, params[share])))

    return change


def _both_ways(scenario: Scenario, params: Params) -> Scenario:
    both = scenario.with_parallel(schedule="dualpipe", virtual_stages=1)
    return both.with_edit(Edit("dualpipe", hidden(is_expert_exchange, params["hidden"])))


def _runs_both_ways(scenario: Scenario) -> str | None:
    p = scenario.workload.parallel
    if p.schedule == "dualpipe":
        return "the schedule is DualPipe already: fwd-bwd-overlap hides the exchange in it"
    objection = dualpipe_objection(p.pp, p.micro_batches)
    return None if objection is None else objection[1]


def _one_kernel(scenario: Scenario, params: Params) -> Scenario:
    def rows(op: Op, _: StepContext) -> Op:
        if op.stage != "moe" or (op.kind == "collective" and not is_expert_exchange(op)):
            return op
        launches = op.launches if op.in_layer == "router" else 0.0
        share = params["hidden"] if is_expert_exchange(op) else op.hidden
        return op.having(launches=launches, hidden=max(op.hidden, share))

    return scenario.with_edit(Edit("moe-megakernel", each(lambda _: True, rows)))


def _unfolded(scenario: Scenario, params: Params) -> Scenario:
    return scenario.with_parallel(ep=int(params["ep"]), etp=1)


def _folds(scenario: Scenario) -> str | None:
    p = scenario.workload.parallel
    if p.ep > 1 or p.etp > 1:
        return f"experts have a layout of their own already (ep {p.ep}, etp {p.etp})"
    return None if p.tp * p.cp * p.dp > 1 else "it needs more than one device in a stage"


def _by_sequence(scenario: Scenario, _: Params) -> Scenario:
    p = scenario.workload.parallel
    ep = p.ep if p.ep > 1 else p.tp
    return scenario.with_parallel(
        tp=1, cp=p.cp * p.tp, ep=ep, etp=1, context_exchange="all_to_all", sequence_parallel=False
    )


_HIDDEN = "share of the exchange that runs behind other work"
_APART = needs_more_than_one("ep", "expert parallelism")
_TRAIN_OR_PREFILL: Objection = first_of(only_in("train", "prefill"), needs_experts)

EXPERT_LEVERS: tuple[Lever, ...] = (
    Lever(
        "grouped-gemm",
        "All experts in one product",
        "kernel",
        "Without it each expert of a rank is a product of its own: that many launches.",
        needs_experts,
        lack=_one_by_one,
    ),
    effort_lever(
        "deepgemm",
        "FP8 grouped products",
        "Without it expert products take so many times as long (expected time only, F-9.8).",
        is_expert_product,
        1.3,
        first_of(needs_experts, needs_nvidia(90, 109)),
    ),
    Lever(
        "dropless-blocksparse",
        "Experts without capacity padding",
        "kernel",
        "Without it each expert works on a fixed capacity: so many times the routed copies (F-9.9).",
        first_of(only_in("train"), needs_experts),
        lack=_with_capacity,
        memory_lever="pack",
        params=(Param("capacity", 1.25, 1, 8, "capacity factor without it"),),
        excludes=("capacity-graph",),
    ),
    Lever(
        "scattermoe",
        "Gather and scatter inside the expert products",
        "kernel",
        "The permuted copy of the tokens is neither written nor kept (F-9.2, F-6.7).",
        _TRAIN_OR_PREFILL,
        change=_scatter,
        memory_lever="dematerialize",
        excludes=_others("scattermoe", PERMUTATIONS),
    ),
    Lever(
        "sonicmoe",
        "Expert kernels that keep neither input nor output copies",
        "kernel",
        "The permuted copy is not written; of the expert layer only the tensors as wide as an expert are kept and read"
        " again (F-6.7).",
        first_of(only_in("train"), needs_experts, needs_nvidia(90, 109)),
        change=_sonic,
        memory_lever="dematerialize",
        excludes=(*_others("sonicmoe", PERMUTATIONS), "mem-eff-permutation"),
    ),
    Lever(
        "permute-fusion",
        "Permutation in one kernel",
        "kernel",
        "Without it each copy is read on its own, and weighted copies are written and read again (F-9.2).",
        _TRAIN_OR_PREFILL,
        lack=_permute_apart,
        memory_lever="dematerialize",
        excludes=_others("permute-fusion", PERMUTATIONS),
    ),
    Lever(
        "mem-eff-permutation",
        "Router score before the second expert product",
        "kernel",
        "The experts' outputs are not kept for the backward pass and not read in it: one tensor of copies x hidden"
        " (F-6.7).",
        first_of(only_in("train"), needs_experts, _keeps_activations),
        change=_score_first,
        memory_lever="dematerialize",
        excludes=("sonicmoe",),
    ),
    Lever(
        "deepep",
        "Dispatch kernels that send a token once",
        "communication",
        "Without it every copy is sent on its own, and the exchange takes so many times as long (F-9.3).",
        first_of(needs_experts, _APART, needs_nvidia(90, 109)),
        lack=_every_copy("deepep"),
        params=(Param("slower", 1.5, 1, 20, "time of the exchange at equal bytes, without it over with it"),),
        excludes=_others("deepep", DISPATCHERS),
    ),
    Lever(
        "hybridep",
        "Dispatcher for wide scale-up domains",
        "communication",
        "Without it every copy is sent on its own, and the exchange takes so many times as long (F-9.3).",
        first_of(only_in("train"), needs_experts, _APART, needs_nvidia(90, 109)),
        lack=_every_copy("hybridep"),
        params=(Param("slower", 1.98, 1, 20, "time of the exchange at equal bytes, without it over with it"),),
        excludes=_others("hybridep", DISPATCHERS),
    ),
    Lever(
        "ag-rs-dispatch",
        "All-gather and reduce-scatter instead of all-to-all",
        "communication",
        "Every rank gets all tokens and sends back sums: (ep - 1) times its own tokens, more than each token sent once"
        " to each rank that wants it (F-9.11).",
        first_of(only_in("train"), needs_experts, _APART, _few_ranks),
        change=_gathered_everywhere,
        excludes=(*_others("ag-rs-dispatch", DISPATCHERS), "fp8-dispatch", "node-limited-routing"),
    ),
    Lever(
        "fp8-dispatch",
        "Tokens dispatched in fp8",
        "communication",
        "Dispatch sends one byte an element and a scale for each 128; combine stays as it is (F-9.3).",
        first_of(needs_experts, _APART, wider_than("communication", 8.25), needs_nvidia(89)),
        change=_fp8_out,
        memory_lever="compress",
        excludes=("ag-rs-dispatch",),
    ),
    Lever(
        "node-limited-routing",
        "Experts of a token on few nodes",
        "algorithmic",
        "A token's experts lie on at most so many nodes: distinct nodes are capped (F-9.3).",
        first_of(needs_experts, _APART),
        change=_few_nodes,
        params=(Param("nodes", 4, 1, 1024, "nodes that a token may go to", whole=True),),
        excludes=("ag-rs-dispatch",),
    ),
    Lever(
        "aux-free-bias",
        "Balance by a routing bias",
        "algorithmic",
        "The router's skew is gone; the noise of random routing stays (F-9.6).",
        first_of(only_in("train"), needs_experts, _is_skewed),
        change=_no_router_skew,
        excludes=("expert-replication",),
    ),
    Lever(
        "expert-replication",
        "Copies of busy experts",
        "runtime",
        "Busy experts get further copies on the least loaded ranks; each is held and read like an expert, which costs"
        " where weights bind (F-9.7).",
        first_of(needs_experts, _APART, _is_skewed),
        change=_replicas,
        params=(Param("copies", 32, 1, 4096, "further expert copies of a layer over all ranks", whole=True),),
        excludes=("aux-free-bias",),
    ),
    Lever(
        "shared-expert-overlap",
        "Shared expert beside the exchange",
        "communication",
        "A share of dispatch and combine runs behind the shared expert (F-1.5, level L1; expected time only, where half"
        " batches do not hide as much).",
        first_of(_TRAIN_OR_PREFILL, needs_shared_expert, _APART),
        change=_behind("shared-expert-overlap"),
        params=(Param("hidden", 0.3, 0, 0.95, _HIDDEN),),
        excludes=_others("shared-expert-overlap", EXCHANGE_OVERLAP),
    ),
    Lever(
        "fwd-bwd-overlap",
        "Exchange of one micro-batch behind another's products",
        "communication",
        "A share of dispatch and combine runs behind the other direction's products (F-1.5; expected time only).",
        first_of(only_in("train"), needs_experts, _APART, _in_16_bits, _keeps_activations),
        change=_behind("fwd-bwd-overlap"),
        params=(Param("hidden", 0.93, 0, 0.98, _HIDDEN),),
        excludes=_others("fwd-bwd-overlap", EXCHANGE_OVERLAP),
    ),
    Lever(
        "dualpipe",
        "Pipeline fed from both ends",
        "communication",
        "The schedule becomes DualPipe: bubble (p/2 - 1)(F&B + B - 3W), two stages on each device, p + 1 micro-batches"
        " in flight; a share of the exchange runs behind products (F-8). Twice the gradients are reduced, over twice as"
        " many devices.",
        first_of(only_in("train"), needs_experts, needs_more_than_one("pp", "pipeline parallelism"), _runs_both_ways),
        change=_both_ways,
        params=(Param("hidden", 0.9, 0, 0.98, _HIDDEN),),
        excludes=(*_others("dualpipe", EXCHANGE_OVERLAP), "pp-interleave", "zero-bubble"),
    ),
    Lever(
        "comet",
        "Exchange and expert products in one kernel",
        "communication",
        "A share of dispatch and combine runs behind the tiles of the expert products (F-1.5, level L3).",
        first_of(_TRAIN_OR_PREFILL, _APART, needs_nvidia(80, 90)),
        change=_behind("comet"),
        params=(Param("hidden", 0.9, 0, 0.98, _HIDDEN),),
        excludes=_others("comet", EXCHANGE_OVERLAP),
    ),
    Lever(
        "parallel-folding",
        "A layout of their own for experts",
        "communication",
        "Experts are divided over ep ranks of the stage instead of following tensor parallelism: tokens travel to them"
        " (F-9.3).",
        first_of(only_in("train"), needs_experts, _folds),
        change=_unfolded,
        memory_lever="shard",
        params=(Param("ep", 8, 2, 4096, "expert-parallel degree", whole=True),),
        excludes=("sp-ep-geometry",),
    ),
    Lever(
        "sp-ep-geometry",
        "Attention by sequence, experts by rank",
        "communication",
        "The tensor group exchanges sequence for heads instead, and experts are divided over it (F-7.4, not F-7.1); its"
        " parameters are no longer divided and their gradients are reduced over it.",
        first_of(only_in("train"), needs_experts, needs_more_than_one("tp", "tensor parallelism")),
        change=_by_sequence,
        memory_lever="shard",
        excludes=("parallel-folding", "tp-sp"),
    ),
    Lever(
        "moe-megakernel",
        "Dispatch, experts and combine in one kernel",
        "kernel",
        "The expert layer is one launch behind the router, and a share of the exchange is hidden (F-11.1, F-1.5).",
        first_of(only_in("decode", "prefill"), needs_experts, needs_nvidia(90)),
        change=_one_kernel,
        params=(Param("hidden", 0.9, 0, 0.98, _HIDDEN),),
        excludes=_others("moe-megakernel", EXCHANGE_OVERLAP),
    ),
    Lever(
        "capacity-graph",
        "Fixed capacity for graph replay",
        "runtime",
        "Launches are free on the host; experts work on so many times the routed copies (F-9.9, F-11.2).",
        first_of(only_in("train", "decode"), needs_experts, launches_one_by_one),
        change=_fixed_capacity,
        memory_lever="allocator",
        params=(Param("capacity", 1.25, 1, 8, "capacity factor"),),
        excludes=("cuda-graph", "dropless-blocksparse"),
    ),
)
"""Mixtures of experts, in the order of the technique library."""
