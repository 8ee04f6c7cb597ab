"""Where a direction can be confirmed or refuted before anybody writes code: a page that opens on the walked step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from app.domain.decision_tree import Leaf
from app.domain.model import ModelSpec
from app.domain.technique import Technique
from app.domain.workload import Workload
from app.services import moe
from app.services.diagnose_trials import Trial
from app.services.kv_what_if import KvState
from app.services.memory_page import MemoryState
from app.services.what_if import WhatIf

PAGES: Mapping[str, tuple[str, str]] = {
    "bound": ("/explore", "the what-if lab"),
    "memory": ("/memory", "the memory page"),
    "kv": ("/kv", "the KV page"),
    "moe": ("/moe", "the page of expert layers"),
    "collectives": ("/comm", "the communication page"),
    "pipeline": ("/comm?view=pipeline", "the page of pipeline schedules"),
}
"""Pages of a question of their own: what opens where no step is known."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """An address and what it opens, in words."""

    url: str
    words: str


def confirm(
    leaf: Leaf,
    state: WhatIf | None,
    step: tuple[ModelSpec, Workload] | None,
    trials: Sequence[Trial],
    techniques: Mapping[str, Technique],
    run_id: str | None,
) -> Confirm | None:
    """What confirms a leaf for a step, which the lab's `state` holds; None where nothing here can."""
    if leaf.confirm == "run":
        return None if run_id is None else Confirm(f"/runs/{run_id}#findings", "the findings of the run")
    if state is not None and step is not None:
        own = _own_page(leaf.confirm, state, *step)
        if own is not None:
            return own
        first = next((trial for trial in trials if trial.lever and trial.applies), None)
        if first is not None and leaf.confirm != "bound":
            url = _address("/explore", with_levers(state, [(first.technique, first.params)]).query())
            return Confirm(url, f"this step in the lab with “{techniques[first.technique].name}” on")
        return Confirm(_address("/explore", state.query()), "this step in the what-if lab")
    if leaf.confirm in PAGES:
        return Confirm(*PAGES[leaf.confirm])
    shown = next((techniques[id_] for id_ in leaf.techniques), None)
    if shown is None:
        return Confirm(*PAGES["bound"])
    return Confirm(
        f"/library/techniques/{shown.id}", f"the page of “{shown.name}”: its effect on a step of your choice"
    )


def with_levers(state: WhatIf, levers: Sequence[tuple[str, Mapping[str, float]]]) -> WhatIf:
    """The state with further levers behind those it has."""
    chosen = state.chosen_levers()
    taken = {id_ for id_, _ in chosen}
    return state.with_levers([*chosen, *((id_, params) for id_, params in levers if id_ not in taken)])


def _own_page(page: str, state: WhatIf, model: ModelSpec, workload: Workload) -> Confirm | None:
    """The page of a question, opened on the step; None where that page cannot hold it."""
    if page == "memory":
        return Confirm(_address("/memory", MemoryState(lab=state).query()), "the memory of this step, object by object")
    if page == "kv" and model.generates and workload.phase != "train":
        return Confirm(_address("/kv", _kv(state, workload).query()), "the cache of this step")
    if page == "moe" and model.is_moe:
        return Confirm(_address("/moe", moe.nearest_state(state, workload).query()), "the expert layers of this step")
    if page == "pipeline" and workload.parallel.pp > 1:
        return Confirm(_address("/comm", _pipeline(workload)), "its pipeline, drawn beside other schedules")
    return _exchange(state, model, workload) if page == "collectives" else None


def _kv(state: WhatIf, workload: Workload) -> KvState:
    prompt = workload.phase == "prefill"
    same = {name: getattr(state, name) for name in ("hardware", "model", "batch", "weights", "activations", "kv")}
    degrees = {name: getattr(state, name) for name in ("tp", "pp", "dp", "cp", "ep", "ceilings")}
    return KvState(
        **same,
        **degrees,
        context=max(workload.context_len + (workload.seq_len if prompt else 0), 1),
        prefix=workload.kv.shared_prefix_tokens,
        page=workload.kv.page_tokens,
        lines="-",
    )


def _pipeline(workload: Workload) -> dict[str, str]:
    parallel = workload.parallel
    schedule = "interleaved" if parallel.virtual_stages > 1 else parallel.schedule
    asked = {"view": "pipeline", "schedule": schedule, "stages": parallel.pp, "micro_batches": parallel.micro_batches}
    if parallel.virtual_stages > 1:
        asked["virtual_stages"] = parallel.virtual_stages
    return {name: str(value) for name, value in asked.items()}


def _exchange(state: WhatIf, model: ModelSpec, workload: Workload) -> Confirm | None:
    """The exchange that a step waits for: the sums of a tensor group, the gathers of shards, or the gradients."""
    parallel = workload.parallel
    if parallel.tp > 1:
        sent = workload.new_tokens * model.hidden_size * workload.dtypes.bytes_of("communication")
        gathers = parallel.sequence_parallel and workload.phase != "decode"
        kind, words = ("all_gather", "one all-gather") if gathers else ("all_reduce", "one all-reduce")
        asked = {"hardware": state.hardware, "kind": kind, "size": f"{sent:.0f} B", "ranks": parallel.tp}
        return Confirm(_address("/comm", asked), f"{words} of this size over these ranks")
    if workload.phase == "train" and parallel.zero_stage == 3 and parallel.dp > 1:
        asked = {
            "view": "sharding", "hardware": state.hardware, "model": state.model, "batch": state.batch,
            "seq": state.seq, "dp": state.dp, "recompute": state.recompute,
        }  # fmt: skip
        return Confirm(_address("/comm", asked), "its gathers beside the compute that could hide them")
    if parallel.cp > 1 and workload.phase != "decode":
        asked = {
            "view": "context", "hardware": state.hardware, "model": state.model, "phase": workload.phase,
            "batch": state.batch, "prompt": state.seq, "cp": state.cp,
        }  # fmt: skip
        return Confirm(_address("/comm", asked), "its ring of keys and values beside attention")
    return None


def _address(page: str, query: Mapping[str, object]) -> str:
    return f"{page}?{urlencode(query)}" if query else page
