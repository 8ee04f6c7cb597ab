"""What holds for every lever and every order of levers, over phases, models, layouts and devices."""

from __future__ import annotations

import itertools
import random
from functools import cache
from typing import Any

import pytest

from app.domain.errors import InvalidInput
from app.domain.levers.registry import FAMILIES, LEVERS
from app.services.estimate import bound_json
from app.services.levers import lever_json, refusals
from tests.domain.lever_scenarios import QUESTIONS, asked

FIGURES = (
    "bound_s",
    "serial_bound_s",
    "expected_s",
    "executed_flop",
    "hbm_bytes",
    "net_bytes",
    "launches",
    "memory_bytes",
)
FASTER_ONLY = {"continuous-batching"}
"""Levers that change nothing of a step but what it emits."""

WITHOUT_EFFECT = {
    ("split-kv", "experts, decode"),  # a batch of 64 fills the device
    ("grouped-gemm", "experts, train in a node"),
    ("node-limited-routing", "experts, train in a node"),  # one node
    ("node-limited-routing", "experts, decode"),  # four nodes
    ("hierarchical-coll", "experts, train in a node"),
    ("hierarchical-coll", "experts, folded"),
}


@cache
def answer(name: str, *levers: str) -> dict[str, Any] | str:
    """The answer in the API's shape, or the reason of a refusal at one of the levers."""
    try:
        return bound_json(asked(name, *levers))
    except InvalidInput as error:
        refusal = error
    assert refusal.loc[0] == "levers"
    assert isinstance(refusal.loc[1], int)
    return refusal.reason


def nothing_is_negative(found: dict[str, Any]) -> None:
    for op in found["ops"]:
        for name in ("count", "flop", "executed_flop", "hbm_bytes", "net_bytes", "launches", "time_s"):
            assert op[name] >= 0, (op["name"], name)
    for held in found["memory"]["objects"]:
        assert held["bytes"] >= 0, held
    assert found["tokens"] > 0


@pytest.mark.parametrize("lever", LEVERS)
def test_each_lever_changes_a_question_where_it_makes_sense(lever: str) -> None:
    effects = 0
    for name in QUESTIONS:
        found = answer(name, lever)
        if isinstance(found, str):
            assert len(found) > 10, "a refusal says why"
            continue
        nothing_is_negative(found)
        (row,) = found["ledger"]
        before, after = row["before"], row["after"]
        changed = any(before[figure] != after[figure] for figure in (*FIGURES, "tokens", "devices"))
        assert changed or (lever, name) in WITHOUT_EFFECT, f"{lever} changes nothing in {name}"
        effects += changed
        if LEVERS[lever].ideal:
            # what the bound takes for granted: without it nothing is less, and with it the plain bound is back
            plain = answer(name)
            assert isinstance(plain, dict)
            assert [found["bound_s"], found["hbm_bytes"], found["memory"]] == [
                plain["bound_s"],
                plain["hbm_bytes"],
                plain["memory"],
            ]
            assert all(before[figure] >= after[figure] * (1 - 1e-12) for figure in FIGURES)
    assert effects, f"{lever} applies to no question of the table"


def test_a_bound_without_levers_knows_none_of_them() -> None:
    for name in QUESTIONS:
        plain = answer(name)
        assert isinstance(plain, dict)
        assert plain["ledger"] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_levers_in_any_order_telescope(name: str) -> None:
    draw = random.Random(f"order of {name}")  # the same orders at every run
    for _ in range(3):
        path: list[str] = []
        for lever in draw.sample(list(LEVERS), 14):
            if isinstance(answer(name, *path, lever), dict):
                path.append(lever)
        if not path:
            continue
        found = answer(name, *path)
        assert isinstance(found, dict)
        nothing_is_negative(found)
        ledger = found["ledger"]
        assert [row["lever"] for row in ledger] == path
        assert ledger[0]["before"] == found["baseline"]
        for earlier, later in itertools.pairwise(ledger):
            assert earlier["after"] == later["before"]
        last = ledger[-1]["after"]
        assert last["bound_s"] == found["bound_s"]
        assert last["hbm_bytes"] == found["hbm_bytes"]
        assert last["net_bytes"] == found["net_bytes"]
        assert last["executed_flop"] == found["executed_flop"]
        assert last["tokens"] == found["tokens"]
        if all(LEVERS[lever].ideal for lever in path):
            plain = answer(name)
            assert isinstance(plain, dict)
            assert found["bound_s"] == plain["bound_s"]


def test_order_of_ideal_levers_moves_the_shares_and_not_the_ends() -> None:
    there, back = (answer("train", *order) for order in (("fa1", "fused-norm"), ("fused-norm", "fa1")))
    assert isinstance(there, dict)
    assert isinstance(back, dict)
    assert there["baseline"] == back["baseline"]
    assert there["bound_s"] == back["bound_s"]


def test_what_excludes_each_other_is_refused_both_ways() -> None:
    for lever in LEVERS.values():
        for other in lever.excludes:
            for pair in ((lever.id, other), (other, lever.id)):
                reason = answer("decode", *pair)
                assert isinstance(reason, str), pair


def test_members_of_a_set_cannot_be_counted_twice() -> None:
    for lever in LEVERS.values():
        assert set(lever.members) <= set(lever.excludes), lever.id


def test_the_list_for_a_question_gives_reasons_or_none() -> None:
    for question in QUESTIONS.values():
        listed = refusals(question.model, question.workload, question.hardware)
        assert [lever.id for lever, _ in listed] == list(LEVERS)
        assert any(reason is None for _, reason in listed)
        for lever, _ in listed:
            item = lever_json(lever)
            for param in item["params"]:
                assert param["least"] <= param["default"] <= param["most"], (item["id"], param["name"])
                assert param["meaning"]
    hopper = QUESTIONS["prefill"]
    reasons = {lever.id: reason for lever, reason in refusals(hopper.model, hopper.workload, hopper.hardware)}
    assert reasons["fa3"] is None
    assert "sm90" in reasons["fa4"]
    unknown = {lever.id: reason for lever, reason in refusals(hopper.model, hopper.workload)}
    assert unknown["fa4"] is None


def test_every_lever_belongs_to_one_family() -> None:
    assert sum(len(family) for family in FAMILIES.values()) == len(LEVERS)
    assert len(LEVERS) >= 100
