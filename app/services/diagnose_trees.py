"""The trees themselves: scenarios with their questions and directions, metrics, and the table of symptoms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.decision_tree import (
    Answer,
    Evidence,
    Node,
    Tree,
    TreeMetric,
    Trees,
    decide,
)
from app.services.context import Context
from app.services.diagnose_words import value_text


def metric_json(metric: TreeMetric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "kind": metric.kind,
        "how": metric.how,
        "find": dict(metric.find),
        "choices": list(metric.choices),
        "least": metric.least,
        "most": metric.most,
    }


def scenarios_json(ctx: Context) -> list[dict[str, Any]]:
    """The scenarios with their questions and directions, for `GET /scenarios`."""
    return [_tree_json(tree) for tree in ordered(ctx.catalog.trees)]


SCENARIO_ORDER: tuple[str, ...] = ("dense_train", "prefill", "decode", "moe", "vlm", "diffusion", "ssm")


def ordered(trees: Trees) -> list[Tree]:
    return sorted(trees.scenarios.values(), key=lambda tree: SCENARIO_ORDER.index(tree.id))


def _tree_json(tree: Tree) -> dict[str, Any]:
    return {
        "id": tree.id,
        "title": tree.title,
        "line": tree.line,
        "start": tree.start,
        "assume": dict(tree.assume),
        "nodes": [_node_json(node) for node in tree.nodes.values()],
        "leaves": [
            {
                "id": leaf.id,
                "title": leaf.title,
                "why": leaf.why,
                "techniques": list(leaf.techniques),
                "confirm": leaf.confirm,
                "measure_next": leaf.measure_next,
                "avoid": leaf.avoid,
            }
            for leaf in tree.leaves.values()
        ],
    }


def _node_json(node: Node) -> dict[str, Any]:
    tests = [
        {
            "metric": test.metric,
            "op": test.op,
            "threshold": test.threshold.value,
            "of": test.of,
            "unit": test.threshold.unit,
            "origin": test.threshold.origin,
            "note": test.threshold.note,
        }
        for test in node.condition.tests
    ]
    return {
        "id": node.id,
        "question": node.question,
        "why": node.why,
        "join": node.condition.join,
        "tests": tests,
        "needs": list(node.condition.needs),
        "if_yes": node.if_yes,
        "if_no": node.if_no,
    }


def symptoms_json(ctx: Context, evidence: Mapping[str, Evidence] | None = None) -> list[dict[str, Any]]:
    """The symptom table. With evidence, whether each symptom shows there."""
    trees = ctx.catalog.trees
    rows = []
    for symptom in trees.symptoms.values():
        answer: Answer = decide(symptom.condition, evidence or {})[0]
        rows.append(
            {
                "id": symptom.id,
                "see": symptom.see,
                "cause": symptom.cause,
                "avoid": symptom.avoid,
                "shows": answer,
                "join": symptom.condition.join,
                "tests": [
                    {
                        "metric": test.metric,
                        "label": trees.metrics[test.metric].label,
                        "op": test.op,
                        "threshold": test.threshold.value,
                        "threshold_text": value_text(trees.metrics[test.metric], test.threshold.value),
                        "unit": test.threshold.unit,
                        "origin": test.threshold.origin,
                    }
                    for test in symptom.condition.tests
                ],
                "go": [{"leaf": leaf, "title": trees.leaves[leaf].title} for leaf in symptom.go],
                "scenarios": [{"id": id_, "title": trees.scenarios[id_].title} for id_ in symptom.scenarios],
            }
        )
    return rows
