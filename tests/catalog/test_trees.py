"""The decision trees: the shipped files are sound, and each thing that may be wrong is named with its place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest

from app.catalog.loader import load_catalog
from app.catalog.tree_codec import TreeProblem, trees_from_files
from app.domain.tree_evidence import LARGE_ATTENTION, STREAMS_WELL

Files = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def shipped() -> Files:
    folder = resources.files("app.catalog") / "data" / "trees"
    return {item.name: json.loads(item.read_text("utf-8")) for item in folder.iterdir() if item.name.endswith(".json")}


def test_the_seven_scenarios_have_the_questions_of_the_design() -> None:
    trees = load_catalog().trees
    assert set(trees.scenarios) == {"dense_train", "prefill", "decode", "moe", "vlm", "diffusion", "ssm"}
    assert len(trees.leaves) == 67
    assert len(trees.symptoms) == 10
    assert len({name for tree in trees.scenarios.values() for name in tree.nodes}) == 79
    decode = trees.scenarios["decode"]
    assert decode.nodes["v4"].if_no == "dc0"
    assert decode.nodes["dc8"].condition.needs == ("batch_over_critical", "latency_goal")
    assert trees.scenarios["ssm"].nodes["sm1"].if_no == "dt1"
    for tree in trees.scenarios.values():
        for node in tree.nodes.values():
            assert node.question.endswith("?")
            assert all(trees.metrics[name].find for name in node.condition.needs)
    assert tuple(trees.thresholds[name].value for name in ("attn_hi", "attn_stream_ok")) == (
        LARGE_ATTENTION,
        STREAMS_WELL,
    )
    for leaf in trees.leaves.values():
        assert leaf.why.endswith(".")
        assert leaf.avoid.endswith(".")
        assert leaf.measure_next.endswith(".")


def _set(file: str, *path: str | int, to: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        place: Any = files[file]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


def _lose_unit(files: Files) -> None:
    del files["thresholds.json"]["thresholds"][0]["unit"]


def _unasked_leaf(files: Files) -> None:
    leaves = files["leaves.json"]["leaves"]
    leaves.append({**leaves[0], "id": "L-nowhere"})


def _unasked_node(files: Files) -> None:
    nodes = files["ssm.json"]["nodes"]
    nodes.append({**nodes[0], "id": "sm9"})


@pytest.mark.parametrize(
    ("break_it", "place", "words"),
    [
        (_set("decode.json", "nodes", 0, "if_yes", to="dc99"), "decode.json: nodes.0.if_yes", "no node and no leaf"),
        (_set("decode.json", "nodes", 0, "if_yes", to="v2"), "decode.json: uses.validity", "circle: v2 -> v3"),
        (_set("ssm.json", "nodes", 2, "if_no", to="sm1"), "ssm.json: nodes.", "circle: sm1 -> sm2 -> sm3 -> sm1"),
        (_set("leaves.json", "leaves", 3, "techniques", to=["fast"]), "leaves.json: leaves.3.techniques.0", "'fast'"),
        (_unasked_leaf, "leaves.json: leaves.67.id", "no way leads to 'L-nowhere'"),
        (_unasked_node, "ssm.json: nodes.3.id", "no way leads to 'sm9'"),
        (_lose_unit, "thresholds.json: thresholds.0.unit", "is missing"),
        (_set("thresholds.json", "thresholds", 2, "unit", to="s"), "thresholds.json: thresholds.2.unit", "is in '1'"),
        (_set("moe.json", "nodes", 0, "test", 0, "threshold", to="none"), "moe.json: nodes.0.test.0", "value nor unit"),
        (_set("vlm.json", "nodes", 0, "test", to=[]), "vlm.json: nodes.0.test", "measurable test"),
        (_set("symptoms.json", "symptoms", 0, "go", to=["L-x"]), "symptoms.json: symptoms.0.go.0", "no leaf"),
        (_set("prefill.json", "uses", to=["nothing"]), "prefill.json: uses.0", "no tree or part"),
    ],
)
def test_what_is_wrong_is_named(shipped: Files, break_it: Callable[[Files], None], place: str, words: str) -> None:
    files = copy.deepcopy(shipped)
    break_it(files)
    with pytest.raises(TreeProblem) as caught:
        trees_from_files(files, load_catalog().techniques)
    assert f"{caught.value.file}: {caught.value.field_path}".startswith(place)
    assert words in caught.value.reason


def test_a_missing_table_is_named(shipped: Files) -> None:
    files = {name: data for name, data in shipped.items() if name != "leaves.json"}
    with pytest.raises(TreeProblem, match=r"leaves\.json"):
        trees_from_files(files, load_catalog().techniques)
