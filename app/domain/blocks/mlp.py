"""Feed-forward layers, dense and mixture of experts."""

from __future__ import annotations

import numpy as np

from app.domain.blocks.context import StepContext
from app.domain.collectives import far_hops, near_turns, wire_bytes
from app.domain.cost import Op, elementwise
from app.domain.errors import InvalidInput
from app.domain.model import DenseMlp, MoeMlp
from app.domain.precision import PRECISIONS
from app.domain.routing import distinct_experts, dropped_share, expert_capacity, rank_skew, reached_places
from app.domain.units import Bytes, Grid


def mlp_rows(ctx: StepContext, mlp: DenseMlp, count: float, stage: str = "mlp") -> list[Op]:
    """Rows of `count` dense feed-forward layers: two or three matrices (F-2.3), split over tensor parallelism."""
    width = mlp.intermediate / ctx.tp
    rows = _matrices(ctx, stage, "", ctx.tokens, width, mlp.gated, count)
    rows.append(ctx.all_reduce(f"{stage} all-reduce", stage, count))
    return rows


def moe_rows(ctx: StepContext, moe: MoeMlp, count: float) -> list[Op]:
    """Rows of `count` mixture-of-experts layers.

    Experts are divided over expert and expert-tensor parallelism; without either they follow tensor parallelism. The
    tokens of all ranks that share the experts are spread evenly over them. Weights: the expected number of distinct
    experts touched, each read once (F-9.5). FLOP: `top_k` experts a token (F-2.4), plus the shared ones. Permutation
    traffic by F-9.2. With a latent size, the routed experts work on that width between two projections that every rank
    keeps whole.
    """
    layout = ctx.layout
    t = ctx.tokens
    h = ctx.hidden if moe.latent_size is None else moe.latent_size
    dispatch = ctx.workload.dispatch
    if dispatch.replicas % layout.ep:
        raise InvalidInput(
            ("workload", "dispatch", "replicas"),
            f"{dispatch.replicas} replicas do not divide over expert parallel {layout.ep}",
        )
    shared_tokens = layout.expert_tokens(ctx.replica_tokens)
    routing = ctx.workload.routing
    everything = shared_tokens * moe.top_k
    touched = (distinct_experts(routing, shared_tokens, moe.experts, moe.top_k) + dispatch.replicas) / layout.ep
    kept: Grid = 1.0
    copies = rows_worked = everything / layout.ep
    skew = rank_skew(routing, everything, moe.experts, layout.ep, top_k=moe.top_k, replicas=dispatch.replicas)
    if dispatch.capacity_factor is not None:
        # every expert works on the same number of rows, whether tokens fill them or not
        capacity = expert_capacity(everything, moe.experts, dispatch.capacity_factor)
        kept = 1.0 - dropped_share(routing, everything, moe.experts, capacity, top_k=moe.top_k)
        copies, rows_worked = copies * kept, capacity * moe.experts / layout.ep
        touched, skew = moe.experts / layout.ep, 0.0
    width = moe.expert_intermediate / layout.etp
    own = ctx.replica_tokens / (layout.tp * layout.cp)  # tokens that this rank alone sends to experts
    matrices_in = 2 if moe.gated else 1

    def expert_gemm(name: str, n: Grid, k: Grid, formula: str) -> Op:
        return Op(
            name,
            "moe",
            "gemm",
            count=count,
            pipe="tensor",
            dtype=ctx.product,
            flop=2.0 * copies * n * k,
            executed=None if dispatch.capacity_factor is None else 2.0 * rows_worked * n * k,
            weights=touched * n * k * ctx.weight,
            act_read=rows_worked * k * ctx.activation,
            act_write=rows_worked * n * ctx.activation,
            skew=skew,
            groups=touched,
            formula=formula,
        )

    there, back = _exchange_with_experts(ctx, moe, own * kept, h, count, skew)
    once = _once_to_a_rank(ctx, moe)
    rows = [
        ctx.gemm(
            "router",
            "moe",
            m=t,
            n=moe.experts,
            k=ctx.hidden,
            output=4.0,
            count=count,
            formula="2 tokens hidden experts",
        ),
        elementwise(
            "top-k",
            "moe",
            elements=t * moe.experts,
            reads=1,
            writes=0,
            activation=4.0,
            flop_per_element=2,
            exponentials=t * moe.experts,
            count=count,
        ),
        elementwise(
            "histogram",
            "moe",
            elements=t * moe.top_k,
            reads=1,
            writes=1,
            activation=4.0,
            flop_per_element=1,
            count=count,
            launches=0.0,
            formula="expert ids of 4 bytes in, places of 4 bytes out; counted in the kernel of the top-k",
        ),
        Op(
            "permute",
            "moe",
            "copy",
            count=count,
            act_read=t * h * ctx.activation,
            act_write=rows_worked * h * ctx.activation,
            formula="read tokens hidden, write tokens top_k hidden",
        ),
        *there,
        *ctx.exchange(
            "expert tensor gather",
            "moe",
            "all_gather",
            0.0 if layout.folded else copies * once * h * ctx.wire,
            layout.expert_tensor_group,
            0.0 if layout.folded else count,
        ),
        expert_gemm(
            "expert gate and up" if moe.gated else "expert up",
            matrices_in * width,
            h,
            f"2 tokens top_k hidden {matrices_in} expert_intermediate / tp",
        ),
        elementwise(
            "expert activation",
            "moe",
            elements=rows_worked * width,
            reads=matrices_in,
            writes=1,
            activation=ctx.activation,
            flop_per_element=5,
            exponentials=rows_worked * width * ctx.activation_exponentials,
            count=count,
        ),
        expert_gemm("expert down", h, width, "2 tokens top_k expert_intermediate hidden / tp"),
        *ctx.exchange(
            "expert tensor scatter",
            "moe",
            "reduce_scatter",
            0.0 if layout.folded else copies * once * h * ctx.wire,
            layout.expert_tensor_group,
            0.0 if layout.folded else count,
        ),
        *back,
        Op(
            "unpermute",
            "moe",
            "copy",
            count=count,
            pipe="vector",
            dtype="fp32",
            flop=2.0 * copies * h,
            act_read=copies * h * ctx.activation,
            act_write=t * h * ctx.activation,
            # the gradient of a token's weights is its gradient times what each of its experts put out, which was kept
            act_backward=((t + copies) * h * ctx.activation, copies * h * ctx.activation),
            formula="read tokens top_k hidden, write tokens hidden",
        ),
    ]
    if moe.latent_size is not None:
        rows += [_product(ctx, "latent down", t, h, ctx.hidden, count, "2 tokens hidden latent")]
        rows += [_product(ctx, "latent up", t, ctx.hidden, h, count, "2 tokens latent hidden")]
    if moe.shared_expert_gate:
        rows += [_product(ctx, "shared expert gate", t, 1, ctx.hidden, count, "2 tokens hidden")]
    for prefix, intermediate in (
        ("shared expert ", moe.shared_intermediate),
        ("dense ", moe.dense_intermediate),
    ):
        if intermediate:
            rows += _matrices(ctx, "moe", prefix, t, intermediate / ctx.tp, moe.gated, count)
    if layout.folded or moe.shared_intermediate or moe.dense_intermediate:
        # routed experts keep the copies that they got; only products of every token read what was gathered
        dense = bool(moe.shared_intermediate or moe.dense_intermediate)
        rows.append(ctx.all_reduce("moe all-reduce", "moe", count, gathers=dense))
    elif not ctx.workload.parallel.sequence_parallel:
        # combined tokens lie on the rank that sent them: the tensor group gathers them again
        size = t * ctx.hidden * ctx.wire
        rows += ctx.exchange("moe all-gather", "moe", "all_gather", size, layout.tensor_group, count)
    return rows


def expected_destinations(places: Grid, experts: int, top_k: int) -> Grid:
    """Distinct places among `places` that a token's experts lie on, expected under uniform routing (F-9.3).

    Exact: a place is missed when all `top_k` choices fall on the experts of the others.
    """
    n = float(places) if np.ndim(places) == 0 else np.asarray(places, dtype=np.float64)
    elsewhere = experts - experts / n
    missed: Grid = 1.0
    for choice in range(top_k):
        left = elsewhere - choice
        missed = missed * (max(left, 0.0) if isinstance(left, float) else np.maximum(left, 0.0)) / (experts - choice)
    return n * (1.0 - missed)


def _destinations(ctx: StepContext, moe: MoeMlp, places: Grid) -> Grid:
    """Distinct places that a token's experts lie on: fewer where routing prefers some experts."""
    spread = expected_destinations(places, moe.experts, moe.top_k)
    if ctx.workload.routing.kind not in ("zipf", "histogram") or not isinstance(places, float):
        return spread
    reached = reached_places(ctx.workload.routing, moe.experts, round(places), moe.top_k)
    return spread if reached is None else min(float(spread), float(reached.sum()))


def sent_copies(ctx: StepContext, moe: MoeMlp) -> tuple[Grid, Grid]:
    """Copies of a token that its rank sends on the scale-up and on the scale-out tier, expected (F-9.3, F-9.11).

    Under a node limit distinct nodes are capped, and the experts of those nodes are all that a token can reach.
    """
    group, dispatch = ctx.layout.expert_group, ctx.workload.dispatch
    size, local = group.size, group.local
    nodes = -(-size // local)
    if dispatch.scheme == "all_gather":
        sent = wire_bytes("all_gather", size, size, local)
        return sent["scale_up"], sent["scale_out"]
    to_nodes, to_ranks = _destinations(ctx, moe, nodes), _destinations(ctx, moe, size)
    most = nodes if dispatch.node_limit is None else np.minimum(float(dispatch.node_limit), nodes)
    if dispatch.node_limit is not None and np.any(most < to_nodes):
        reachable = round(moe.experts * float(np.max(most / nodes)))
        limited = expected_destinations(np.maximum(most * local, 1.0), max(reachable, moe.top_k), moe.top_k)
        to_ranks = np.where(most < to_nodes, np.minimum(limited, to_ranks), to_ranks)
        to_nodes = np.minimum(to_nodes, most)
    away = to_nodes * (1.0 - 1.0 / nodes)
    if dispatch.scheme == "hierarchical":
        inside = to_ranks * (1.0 - 1.0 / size) - away
        return max(inside, 0.0) if isinstance(inside, float) else np.maximum(inside, 0.0), away
    # straight to each rank, or to each expert: places in the other nodes are as likely as those in the own one
    places = to_ranks if dispatch.scheme == "deduplicated" else float(moe.top_k)
    return places * (local - 1.0) / size, places * (size - local) / size


def _once_to_a_rank(ctx: StepContext, moe: MoeMlp) -> Grid:
    """Tokens that reach an expert-parallel rank over the copies that its experts work on: ranks that divide its experts
    between them need each token once, unless every copy is sent apart."""
    if ctx.layout.folded or ctx.workload.dispatch.scheme == "all_to_all":
        return 1.0
    return np.minimum(_destinations(ctx, moe, ctx.layout.expert_group.size) / moe.top_k, 1.0)


def dispatched_bytes(ctx: StepContext) -> Bytes:
    """Bytes of an element of a dispatched token. One in fp8 has an fp32 scale for each 128 (F-9.3)."""
    dtype = ctx.workload.dispatch.dtype
    if dtype is None:
        return ctx.wire
    return 1.0 + 4.0 / 128.0 if dtype == "fp8" else PRECISIONS[dtype].element_bytes


def _exchange_with_experts(
    ctx: StepContext, moe: MoeMlp, own: Grid, width: Grid, count: float, skew: Grid
) -> tuple[list[Op], list[Op]]:
    """Dispatch and combine of tokens (F-9.3): results return by the way that tokens went, the busiest rank's last
    (F-9.7). Empty on one rank.

    By default a token crosses to a node once and to a rank once: a copy for another node lands at one of the ranks that
    want it, so only the others move on inside the node. Gradients travel in the communication precision.
    """
    group = ctx.layout.expert_group
    if isinstance(group.size, (float, int)) and group.size <= 1:
        return [], []
    near, far = sent_copies(ctx, moe)
    kind = "all_gather" if ctx.workload.dispatch.scheme == "all_gather" else "all_to_all"
    hops, turns = (rule(kind, group.size, group.local) for rule in (far_hops, near_turns))

    def exchange(name: str, element: Bytes, uneven: Grid) -> list[Op]:
        size = own * width * element
        return [
            Op(
                name,
                "moe",
                "collective",
                count=count,
                net={"scale_up": size * near, "scale_out": size * far},
                net_backward=ctx.wire / element,
                skew=uneven,
                hops=hops,
                turns=turns,
                formula="own tokens hidden bytes times copies sent on each tier",
            )
        ]

    results = skew
    if ctx.workload.dispatch.scheme == "all_gather":
        results = 0.0  # sums are as large wherever they come from
    elif ctx.workload.dispatch.scheme != "all_to_all" and np.any(np.asarray(skew) > 0):
        once = reached_places(ctx.workload.routing, moe.experts, ctx.layout.ep, moe.top_k)
        results = skew if once is None else np.minimum(skew, float(once.max() / once.mean()) - 1.0)
    return exchange("dispatch", dispatched_bytes(ctx), 0.0), exchange("combine", ctx.wire, results)


def _matrices(
    ctx: StepContext, stage: str, prefix: str, tokens: Grid, width: Grid, gated: bool, count: float
) -> list[Op]:
    matrices_in = 2 if gated else 1

    def product(name: str, n: Grid, k: Grid, formula: str) -> Op:
        return _product(ctx, f"{prefix}{name}", tokens, n, k, count, formula, stage)

    return [
        product(
            "gate and up" if gated else "up",
            matrices_in * width,
            ctx.hidden,
            f"2 tokens hidden {matrices_in} intermediate / tp",
        ),
        elementwise(
            f"{prefix}activation",
            stage,
            elements=tokens * width,
            reads=matrices_in,
            writes=1,
            activation=ctx.activation,
            flop_per_element=5,
            exponentials=tokens * width * ctx.activation_exponentials,
            count=count,
        ),
        product("down", ctx.hidden, width, "2 tokens intermediate hidden / tp"),
    ]


def _product(
    ctx: StepContext, name: str, tokens: Grid, n: Grid, k: Grid, count: float, formula: str, stage: str = "moe"
) -> Op:
    return ctx.gemm(name, stage, m=tokens, n=n, k=k, count=count, formula=formula)
