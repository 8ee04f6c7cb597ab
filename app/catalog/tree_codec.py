"""The decision trees' files: one a scenario, parts that several share, and tables of what they speak of.

What a file cannot know alone (does that node exist, is every leaf reached) is checked over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from app.catalog.fields import Fields, Loc
from app.domain.decision_tree import (
    Condition,
    Leaf,
    Node,
    Op,
    Symptom,
    Tree,
    TreeMetric,
    Trees,
    TreeTest,
    TreeThreshold,
    Value,
)
from app.domain.errors import InvalidInput

KINDS = ("scenario", "part", "leaves", "metrics", "thresholds", "symptoms")
TABLES = ("metrics", "thresholds", "leaves", "symptoms")
ORIGINS = ("judgement", "source", "derived", "definition")
CONFIRM = (
    "run", "bound", "collectives", "pipeline", "memory", "kv", "moe", "batching", "vlm", "diffusion", "ssm", "serving",
    "spec",
)  # fmt: skip
THEN = "THEN"
"""Where a shared part hands over to the scenario that uses it."""


@dataclass
class TreeFiles:
    """What was read, before it is tied together."""

    scenarios: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    nodes: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    metrics: dict[str, TreeMetric] = field(default_factory=dict)
    thresholds: dict[str, TreeThreshold] = field(default_factory=dict)
    leaves: dict[str, Leaf] = field(default_factory=dict)


def trees_from_files(files: Mapping[str, Mapping[str, Any]], techniques: Mapping[str, Any]) -> Trees:
    """Trees of the files by name (`dense_train.json`). Raises TreeProblem for the first that is wrong."""
    read = TreeFiles()
    by_kind: dict[str, list[tuple[str, Mapping[str, Any]]]] = {kind: [] for kind in KINDS}
    for name, data in files.items():
        with _Inside(name):
            kind = _need(Fields(data, (), tuple(data)), "kind", KINDS)
            by_kind[kind].append((name, data))
    for kind in TABLES:
        if [name for name, _ in by_kind[kind]] != [f"{kind}.json"]:
            raise TreeProblem(f"{kind}.json", "", "the table is missing, or there are several of its kind")
    for name, data in by_kind["metrics"]:
        with _Inside(name):
            read.metrics = _table(data, "metrics", _metric)
    for name, data in by_kind["thresholds"]:
        with _Inside(name):
            read.thresholds = _table(data, "thresholds", _threshold)
            _check_thresholds(read)
    for name, data in by_kind["leaves"]:
        with _Inside(name):
            read.leaves = _table(data, "leaves", _leaf)
            _check_leaves(read, techniques)
    for name, data in (*by_kind["part"], *by_kind["scenario"]):
        with _Inside(name):
            _nodes(read, data)
    scenarios: dict[str, Tree] = {}
    for name, data in by_kind["scenario"]:
        with _Inside(name):
            scenarios[str(data["id"])] = _tree(read, data)
    _check_reached(read, scenarios)
    for name, data in by_kind["symptoms"]:
        with _Inside(name):
            symptoms = _table(data, "symptoms", lambda fields: _symptom(fields, read, scenarios))
    return Trees(scenarios, read.metrics, read.thresholds, read.leaves, symptoms)


class TreeProblem(Exception):
    """What is wrong, in which file and where in it."""

    def __init__(self, file: str, field_path: str, reason: str) -> None:
        self.file = file
        self.field_path = field_path
        self.reason = reason
        super().__init__(f"{file}: {field_path}: {reason}")


class _Inside:
    """Says of every InvalidInput inside which file it is about."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidInput):
            raise TreeProblem(self.file, ".".join(str(part) for part in error.loc), error.reason) from error


# ---- the tables -----------------------------------------------------------------------------------------------------


def _table(data: Mapping[str, Any], key: str, read: Any) -> dict[str, Any]:
    fields = Fields(data, (), ("id", "kind", key))
    found: dict[str, Any] = {}
    for place, item in enumerate(fields.items(key, 500)):
        entry = Fields(item, (key, place), _KEYS[key])
        made = read(entry)
        own = made.name if hasattr(made, "name") else made.id
        if own in found:
            raise entry.fail("name" if hasattr(made, "name") else "id", f"{own!r} is there twice")
        found[own] = made
    return found


_KEYS: Mapping[str, tuple[str, ...]] = {
    "metrics": ("name", "label", "unit", "kind", "how", "find", "choices", "least", "most"),
    "thresholds": ("name", "metric", "value", "unit", "origin", "note"),
    "leaves": ("id", "title", "why", "techniques", "confirm", "measure_next", "avoid", "addresses", "goal"),
    "symptoms": ("id", "see", "test", "join", "cause", "go", "avoid", "scenarios"),
}
_NODE = ("id", "question", "test", "join", "if_yes", "if_no", "finding", "why")


def _metric(fields: Fields) -> TreeMetric:
    kind = _need(fields, "kind", ("number", "flag", "choice"))
    choices = fields.texts("choices", 20)
    if (kind == "choice") != bool(choices):
        raise fields.fail("choices", "go with the kind choice, and with no other")
    find = fields.object("find")
    if not find:
        raise fields.fail("find", "is missing: say where the value is found, by tool")
    place = Fields(find, fields.at("find"), tuple(find))
    return TreeMetric(
        name=_text(fields, "name", 60),
        label=_text(fields, "label", 80),
        unit=_text(fields, "unit", 20),
        kind=cast("Any", kind),
        how=_text(fields, "how", 300),
        find={tool: _text(place, tool, 400) for tool in find},
        choices=choices,
        least=float(fields.data.get("least") or 0.0),
        most=None if fields.data.get("most") is None else float(fields.data["most"]),
    )


def _threshold(fields: Fields) -> TreeThreshold:
    value = fields.data.get("value")
    if value is None or not isinstance(value, (bool, int, float, str)):
        raise fields.fail("value", "is missing: a number, true or false, or a choice")
    return TreeThreshold(
        name=_text(fields, "name", 60),
        metric=_text(fields, "metric", 60),
        value=float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value,
        unit=_text(fields, "unit", 20),
        origin=_need(fields, "origin", ORIGINS),
        note=fields.text("note", 300),
    )


def _leaf(fields: Fields) -> Leaf:
    return Leaf(
        id=_text(fields, "id", 60),
        title=_text(fields, "title", 100),
        why=_text(fields, "why", 300),
        techniques=fields.texts("techniques", 20),
        confirm=_need(fields, "confirm", CONFIRM),
        measure_next=_text(fields, "measure_next", 200),
        avoid=_text(fields, "avoid", 200),
        addresses=fields.texts("addresses", 5),
        goal=cast("Any", fields.choice("goal", ("time", "memory")) or "time"),
    )


def _check_thresholds(read: TreeFiles) -> None:
    for place, threshold in enumerate(read.thresholds.values()):
        loc = ("thresholds", place)
        metric = read.metrics.get(threshold.metric)
        if metric is None:
            raise InvalidInput((*loc, "metric"), f"no metric is called {threshold.metric!r}")
        if threshold.unit != metric.unit:
            raise InvalidInput((*loc, "unit"), f"is {threshold.unit!r}, but {metric.name} is in {metric.unit!r}")
        if not fits(metric, threshold.value):
            raise InvalidInput((*loc, "value"), f"{threshold.value!r} is no value of {metric.name}")


def fits(metric: TreeMetric, value: Value) -> bool:
    """Whether a value is one that the metric can have."""
    if metric.kind == "flag":
        return isinstance(value, bool)
    if metric.kind == "choice":
        return value in metric.choices
    return not isinstance(value, (bool, str))


def _check_leaves(read: TreeFiles, techniques: Mapping[str, Any]) -> None:
    for place, leaf in enumerate(read.leaves.values()):
        for number, id_ in enumerate(leaf.techniques):
            if id_ not in techniques:
                loc = ("leaves", place, "techniques", number)
                raise InvalidInput(loc, f"{leaf.id} names {id_!r}, which is no technique of the library")
        for number, name in enumerate(leaf.addresses):
            metric = read.metrics.get(name)
            if metric is None or metric.kind != "number" or metric.unit != "1":
                loc = ("leaves", place, "addresses", number)
                raise InvalidInput(loc, f"{leaf.id} addresses {name!r}, which is no share that a metric has")


# ---- nodes and trees --------------------------------------------------------------------------------------------


def _nodes(read: TreeFiles, data: Mapping[str, Any]) -> None:
    scenario = data["kind"] == "scenario"
    own = ("line", "start", "then", "uses", "assume") if scenario else ()
    fields = Fields(data, (), ("id", "kind", "title", "nodes", *own))
    id_ = _text(fields, "id", 40)
    if scenario:
        read.scenarios[id_] = data
    taken = {name for nodes in read.nodes.values() for name in nodes}
    found: dict[str, Mapping[str, Any]] = {}
    for place, item in enumerate(fields.items("nodes", 200)):
        entry = Fields(item, ("nodes", place), _NODE)
        name = _text(entry, "id", 20)
        if name in taken or name in found:
            raise entry.fail("id", f"{name!r} is there twice")
        found[name] = item
    read.nodes[id_] = found


def _node(read: TreeFiles, item: Mapping[str, Any], loc: Loc, then: str) -> Node:
    fields = Fields(item, loc, _NODE)
    targets = {key: _text(fields, key, 40) for key in ("if_yes", "if_no")}
    return Node(
        id=_text(fields, "id", 20),
        question=_text(fields, "question", 200),
        condition=_condition(fields, read),
        if_yes=then if targets["if_yes"] == THEN else targets["if_yes"],
        if_no=then if targets["if_no"] == THEN else targets["if_no"],
        finding=cast("Any", _need(fields, "finding", ("yes", "no", "both", "none"))),
        why=_text(fields, "why", 300),
    )


def _condition(fields: Fields, read: TreeFiles) -> Condition:
    tests = []
    for place, item in enumerate(fields.items("test", 5)):
        entry = Fields(item, (*fields.at("test"), place), ("threshold", "op", "of"))
        name = _text(entry, "threshold", 60)
        threshold = read.thresholds.get(name)
        if threshold is None:
            raise entry.fail("threshold", f"no threshold is called {name!r}, so the test has neither value nor unit")
        of = entry.text("of", 60)
        if of is not None and of not in read.metrics:
            raise entry.fail("of", f"no metric is called {of!r}")
        op = _need(entry, "op", get_args(Op))
        if op != "==" and read.metrics[threshold.metric].kind != "number":
            raise entry.fail("op", f"{threshold.metric} has no order: use ==")
        tests.append(TreeTest(threshold, cast("Op", op), of))
    if not tests:
        raise fields.fail("test", "is missing: a question needs a measurable test")
    join = fields.choice("join", ("all", "any"))
    if (join is None) != (len(tests) == 1):
        raise fields.fail("join", "say all or any where there are several tests, and nothing for one")
    return Condition(tuple(tests), cast("Any", join or "all"))


def _tree(read: TreeFiles, data: Mapping[str, Any]) -> Tree:
    fields = Fields(data, (), tuple(data))
    id_ = _text(fields, "id", 40)
    then = _text(fields, "then", 20)
    parts = fields.texts("uses", 10)
    for place, part in enumerate(parts):
        if part not in read.nodes:
            raise InvalidInput(("uses", place), f"there is no tree or part {part!r}")
    known: dict[str, Node] = {}
    places: dict[str, Loc] = {}
    for part in (id_, *parts):
        for place, (name, item) in enumerate(read.nodes[part].items()):
            loc: Loc = ("nodes", place) if part == id_ else ("uses", part, "nodes", place)
            known[name] = _node(read, item, loc, then)
            places[name] = loc
    start = _text(fields, "start", 20)
    reached = _reachable(read, known, places, start)
    for name in read.nodes[id_]:
        if name not in reached:
            raise InvalidInput((*places[name], "id"), f"no way leads to {name!r}")
    assume = fields.object("assume") or {}
    for name, answer in assume.items():
        if name not in reached or answer not in ("yes", "no"):
            raise InvalidInput(("assume", name), "must be a node of the tree with yes or no")
    nodes = {name: known[name] for name in reached}
    ends = {target for node in nodes.values() for target in (node.if_yes, node.if_no) if target not in nodes}
    return Tree(
        id=id_,
        title=_text(fields, "title", 80),
        line=_text(fields, "line", 200),
        start=start,
        nodes=nodes,
        leaves={leaf.id: leaf for leaf in read.leaves.values() if leaf.id in ends},
        assume=dict(assume),
    )


def _reachable(read: TreeFiles, known: Mapping[str, Node], places: Mapping[str, Loc], start: str) -> list[str]:
    """Nodes in the order of a walk from the start. Raises for a way that leads nowhere or in a circle."""
    order: list[str] = []
    if start not in known:
        raise InvalidInput(("start",), f"there is no node {start!r}")

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            circle = " -> ".join((*way[way.index(name) :], name))
            raise InvalidInput(places[name], f"the questions go in a circle: {circle}")
        if name in order:
            return
        node = known[name]
        for key, target in (("if_yes", node.if_yes), ("if_no", node.if_no)):
            if target in known:
                visit(target, (*way, name))
            elif target not in read.leaves:
                raise InvalidInput((*places[name], key), f"{name} leads to {target!r}, which is no node and no leaf")
        order.append(name)

    visit(start, ())
    return order[::-1]


def _check_reached(read: TreeFiles, scenarios: Mapping[str, Tree]) -> None:
    led_to = {leaf for tree in scenarios.values() for leaf in tree.leaves}
    for place, leaf in enumerate(read.leaves):
        if leaf not in led_to:
            raise TreeProblem("leaves.json", f"leaves.{place}.id", f"no way leads to {leaf!r}")
    asked = {name for tree in scenarios.values() for name in tree.nodes}
    for part, nodes in read.nodes.items():
        for place, name in enumerate(nodes):
            if name not in asked:
                raise TreeProblem(f"{part}.json", f"nodes.{place}.id", f"no way leads to {name!r}")


def _symptom(fields: Fields, read: TreeFiles, scenarios: Mapping[str, Tree]) -> Symptom:
    symptom = Symptom(
        id=_text(fields, "id", 20),
        see=_text(fields, "see", 120),
        condition=_condition(fields, read),
        cause=_text(fields, "cause", 200),
        go=fields.texts("go", 10),
        avoid=_text(fields, "avoid", 200),
        scenarios=fields.texts("scenarios", 10),
    )
    for place, leaf in enumerate(symptom.go):
        if leaf not in read.leaves:
            raise InvalidInput((*fields.at("go"), place), f"there is no leaf {leaf!r}")
    for place, id_ in enumerate(symptom.scenarios):
        if id_ not in scenarios:
            raise InvalidInput((*fields.at("scenarios"), place), f"there is no scenario {id_!r}")
    return symptom


def _text(fields: Fields, key: str, limit: int) -> str:
    value = fields.line(key, limit)
    if value is None:
        raise fields.fail(key, "is missing")
    return value


def _need(fields: Fields, key: str, choices: tuple[str, ...]) -> str:
    value = fields.choice(key, choices)
    if value is None:
        raise fields.fail(key, f"is missing: one of {', '.join(choices)}")
    return value
