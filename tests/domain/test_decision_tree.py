"""The walk: three-valued tests, near thresholds, overrides, "unknown", and that every direction can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.catalog.loader import load_catalog
from app.domain.decision_tree import (
    Answer,
    Condition,
    Evidence,
    Limit,
    Tree,
    TreeTest,
    TreeThreshold,
    Value,
    decide,
    walk,
)

TREES = load_catalog().trees
SCENARIOS = sorted(TREES.scenarios)


def known(**values: Value) -> dict[str, Evidence]:
    return {name: Evidence(name, value, "user", "stated") for name, value in values.items()}


def limited(name: str, value: float, limit: Limit) -> dict[str, Evidence]:
    return {name: Evidence(name, value, "derived", "a limit", limit)}


def leaves(scenario: str, /, **values: Value) -> list[tuple[str, str]]:
    found = walk(TREES.scenarios[scenario], known(**values))
    return [(item.leaf, item.status) for item in found.directions]


LAUNCH = TREES.thresholds["launch_hi"]
EQUAL = TreeThreshold("none", "cache_hit", 0.0, "1", "definition")


@pytest.mark.parametrize(
    ("value", "op", "answer", "near"),
    [
        (0.15, ">", "no", True),
        (0.15, ">=", "yes", True),
        (0.165, ">", "yes", True),  # 10 % above
        (0.17, ">", "yes", False),
        (0.1349, ">", "no", False),
        (0.1, "<", "yes", False),
        (0.15, "<=", "yes", True),
    ],
)
def test_one_comparison(value: float, op: str, answer: str, near: bool) -> None:
    got, is_near, _ = decide(Condition((TreeTest(LAUNCH, op),)), known(launch_share=value))  # type: ignore[arg-type]
    assert (got, is_near) == (answer, near)


@pytest.mark.parametrize(
    ("limit", "value", "op", "answer"),
    [
        ("at_most", 0.1, ">", "no"),
        ("at_most", 0.1, "<", "yes"),
        ("at_most", 0.3, ">", "unknown"),
        ("at_most", 0.3, "<", "unknown"),
        ("at_least", 0.3, ">", "yes"),
        ("at_least", 0.3, "<", "no"),
        ("at_least", 0.1, ">", "unknown"),
        ("at_least", 0.1, "<=", "unknown"),
    ],
)
def test_a_limit_settles_only_what_it_proves(limit: Limit, value: float, op: str, answer: str) -> None:
    condition = Condition((TreeTest(LAUNCH, op),))  # type: ignore[arg-type]
    assert decide(condition, limited("launch_share", value, limit))[0] == answer


def test_tests_that_combine() -> None:
    """dt3b is any of two, pf1b all of two with a threshold that is half of another value, df7 has a zero threshold."""
    breaks = TREES.scenarios["dense_train"].nodes["dt3b"].condition
    assert decide(breaks, known(graph_breaks=2))[0] == "yes"
    assert decide(breaks, known(graph_breaks=0))[0] == "unknown"
    assert decide(breaks, known(graph_breaks=0, recompiles_per_100_steps=0.2))[0] == "no"
    prefix = TREES.scenarios["prefill"].nodes["pf1b"].condition
    assert decide(prefix, known(prefix_repeat=0.6, prefix_hit=0.1))[0] == "yes"
    assert decide(prefix, known(prefix_repeat=0.6, prefix_hit=0.5))[0] == "no"
    assert decide(prefix, known(prefix_repeat=0.1))[0] == "no"
    assert decide(prefix, known(prefix_hit=0.1))[0] == "unknown"
    cached = TREES.scenarios["diffusion"].nodes["df7"].condition
    assert decide(cached, known(steps=50, cache_hit=0))[0] == "yes"
    assert decide(cached, known(steps=50, cache_hit=0.4))[0] == "no"


def test_a_direct_walk_shows_evidence_threshold_and_distance() -> None:
    found = walk(TREES.scenarios["decode"], known(mbu=0.31, launch_share=0.6))
    assert [(s.node.id, s.answer, s.decided_by) for s in found.steps] == [
        ("v1", "yes", "assumed"),
        ("v2", "yes", "assumed"),
        ("v3", "yes", "assumed"),
        ("v3b", "no", "assumed"),
        ("v4", "no", "assumed"),
        ("dc0", "no", "assumed"),
        ("dc1", "no", "data"),
        ("dc1b", "no", "assumed"),
        ("dc1c", "no", "assumed"),
        ("dc2", "yes", "data"),
    ]
    assert found.ended
    assert found.directions[0].leaf == "L-graphs"
    last = found.steps[-1].checks[0]
    assert (last.evidence.value, last.threshold, last.distance) == (0.6, 0.15, pytest.approx(3.0))  # type: ignore[union-attr]


def test_an_override_says_so_and_wins() -> None:
    evidence = known(mbu=0.31, launch_share=0.6, sampling_share=0.3)
    found = walk(TREES.scenarios["decode"], evidence, {"dc2": "no"})
    step = found.steps[-2]
    assert (step.node.id, step.answer, step.decided_by, step.by_data, step.overridden) == (
        "dc2", "no", "user", "yes", True,
    )  # fmt: skip
    assert found.directions[0].leaf == "L-sampling"


def test_near_a_threshold_the_other_side_is_named() -> None:
    found = walk(TREES.scenarios["decode"], known(mbu=0.31, launch_share=0.145))
    assert found.steps[-1].near
    assert "L-graphs" in found.also_check
    assert found.next is not None
    assert found.next.id == "dc3"


def test_unknown_explores_both_branches() -> None:
    evidence = known(data_wait_share=0.01, padding_fraction=0.02, exposed_comm_share=0.3, binding="compute")
    answers = {"dt2": "unknown", "dt3": "no", "dt4b": "no"}
    found = walk(TREES.scenarios["dense_train"], evidence, answers)
    assert found.ended
    assert [(item.leaf, item.status) for item in found.directions] == [
        ("L-chunk", "likely"),
        ("L-tokenbudget", "possible"),
    ]
    assert found.also_check == ("L-tokenbudget",)


def test_behind_an_open_question_only_what_something_speaks_for() -> None:
    assert leaves("dense_train") == []
    assert leaves("dense_train", exposed_comm_share=0.3, binding="net")[0] == ("L-cutbytes", "likely")
    assert leaves("dense_train", launch_share=0.4, graph_breaks=6) == [("L-breaks", "likely")]
    # a direction that is next once the first is cured
    assert leaves("dense_train", data_wait_share=0.4, copy_share=0.2) == [
        ("L-data", "found"),
        ("L-layout", "afterwards"),
    ]


def test_what_comes_after_a_finding_stands_behind_it() -> None:
    # which kind of communication it is stays open, yet the update comes only after it
    found = leaves("dense_train", exposed_comm_share=0.3, opt_share=0.12)
    assert [leaf for leaf, _ in found[:3]] == ["L-chunk", "L-cutbytes", "L-contention"]
    assert found[3] == ("L-opt", "afterwards")
    assert leaves("moe", a2a_share=0.4, skew=1.9)[0] == ("L-geometry", "likely")
    assert ("L-balance", "afterwards") in leaves("moe", a2a_share=0.4, skew=1.9)


def test_nothing_known_asks_the_first_question_and_names_no_direction() -> None:
    for scenario in SCENARIOS:
        found = walk(TREES.scenarios[scenario], {})
        assert not found.ended
        assert found.directions == ()


# ---- properties -------------------------------------------------------------------------------------------------


def _candidates(metric: str) -> list[Value]:
    about = TREES.metrics[metric]
    if about.kind == "flag":
        return [True, False]
    if about.kind == "choice":
        return list(about.choices)
    marks = sorted({float(t.value) for t in TREES.thresholds.values() if t.metric == metric} | {about.least})
    values = {v for mark in marks for v in (mark, mark * 0.8, mark * 1.2, mark + 1.0)}
    most = about.most if about.most is not None else float("inf")
    return [v for v in sorted(values) if about.least <= v <= most] + ([most] if about.most is not None else [])


def _ways(tree: Tree, place: str, so_far: dict[str, Value]) -> Iterator[tuple[str, dict[str, Value]]]:
    """Every leaf with evidence that leads to it, trying values around the thresholds."""
    if place in tree.leaves:
        yield place, so_far
        return
    node = tree.nodes[place]
    open_ = [name for name in node.condition.needs if name not in so_far]
    done: set[str] = set()
    for values in product(*(_candidates(name) for name in open_)):
        evidence = {**so_far, **dict(zip(open_, values, strict=True))}
        answer: Answer = decide(node.condition, known(**evidence))[0]
        again = any(name in _later(tree, node.target(answer)) for name in open_)
        if answer == "unknown" or (answer in done and not again):
            continue
        done.add(answer)
        yield from _ways(tree, node.target(answer), evidence)


def _later(tree: Tree, place: str) -> set[str]:
    if place not in tree.nodes:
        return set()
    node = tree.nodes[place]
    return set(node.condition.needs) | _later(tree, node.if_yes) | _later(tree, node.if_no)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_leaf_is_reached_by_some_evidence(scenario: str) -> None:
    tree = TREES.scenarios[scenario]
    missing = set(tree.leaves)
    for leaf, evidence in _ways(tree, tree.start, {}):
        if leaf in missing:
            found = walk(tree, known(**evidence))
            assert found.ended
            assert (found.directions[0].leaf, found.directions[0].status) == (leaf, "found")
            missing.discard(leaf)
        if not missing:
            break
    assert not missing


_ANSWERS = st.sampled_from(["yes", "no", "unknown"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_walk_loops_and_back_is_dropping_the_last_answer(data: st.DataObject) -> None:
    scenario = data.draw(st.sampled_from(SCENARIOS))
    tree = TREES.scenarios[scenario]
    evidence = {
        name: Evidence(name, data.draw(st.sampled_from(_candidates(name))), "measured", "drawn")
        for name in data.draw(st.lists(st.sampled_from(sorted(TREES.metrics)), unique=True, max_size=12))
    }
    answers: dict[str, str] = {}
    before = walk(tree, evidence, answers)
    while before.next is not None:
        visited = [step.node.id for step in before.steps]
        assert len(visited) == len(set(visited))
        asked = before.next.id
        assert asked not in answers
        answers[asked] = data.draw(_ANSWERS)
        after = walk(tree, evidence, answers)
        without = {node: answer for node, answer in answers.items() if node != asked}
        assert walk(tree, evidence, without) == before
        before = after
    assert len(answers) <= len(tree.nodes)
    assert before.directions
    assert {item.leaf for item in before.directions} <= set(tree.leaves)
