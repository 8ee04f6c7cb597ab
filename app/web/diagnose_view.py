"""What the pages of a diagnosis show: from the JSON of the answer alone, so that live, saved and shared look alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.domain.decision_tree import Trees
from app.services.diagnose_words import limit_words
from app.web import formatting

ROW: Final = 30
"""Height of a row of the drawing, in its own units."""

TOOLS: Final[Mapping[str, str]] = {
    "nsys": "Nsight Systems",
    "ncu": "Nsight Compute",
    "torch_profiler": "torch.profiler",
    "vllm": "vLLM metrics",
    "bytebound": "Here",
    "any": "By hand",
}
STATUS_WORDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "found": ("The walk ends here", "good", "Every question on the way is answered."),
    "likely": ("Likely", "info", "Known values decide it, but a question before it is open."),
    "afterwards": ("Next, once that is cured", "neutral", "Known values speak for it behind the first direction."),
    "possible": ("Not ruled out", "neutral", "Nothing that is known speaks against it."),
}
ORIGIN_WORDS: Final[Mapping[str, str]] = {
    "judgement": "our judgement",
    "source": "from a source",
    "derived": "follows from the model",
    "definition": "by definition",
}
KIND_BADGES: Final[Mapping[str, str]] = {
    "measured": "measured",
    "derived": "computed",
    "estimated": "computed",
    "user": "entered",
}
OP_WORDS: Final[Mapping[str, str]] = {"<": "below", "<=": "at most", ">": "above", ">=": "at least", "==": "is"}
CHANGE_WORDS: Final = (
    ("memory_bytes", "memory of a device", "B"),
    ("hbm_bytes", "HBM bytes", "B"),
    ("net_bytes", "bytes on links", "B"),
    ("flop", "of compute", "FLOP"),
    ("launches", "launches", "1"),
)


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row of the drawing. `state` is done, now, left or end; `branch` is where the other answer would have led."""

    y: int
    state: str
    label: str
    answer: str = ""
    branch: str = ""
    branch_state: str = ""
    depth: int = 0


def drawing(trees: Trees, found: Mapping[str, Any]) -> dict[str, Any]:
    """The path and what remains of the tree, top to bottom; the numbered list beside it says the same in words."""
    tree = trees.scenarios.get(found["scenario"])
    rows: list[DrawnRow] = []
    if tree is None:
        return {"rows": rows, "height": 0}

    def title(place: str) -> str:
        leaf = trees.leaves.get(place)
        return _short(leaf.title if leaf is not None else _question(trees, found["scenario"], place), 44)

    def add(state: str, label: str, **more: Any) -> None:
        rows.append(DrawnRow(ROW // 2 + ROW * len(rows), state, _short(label, 44), **more))

    reached = {item["leaf"] for item in found["directions"] if item["status"] == "found"}
    for step in found["path"]:
        node = tree.nodes.get(step["node"])
        branch, state = "", ""
        if node is not None and step["answer"] != "unknown":
            other = node.if_no if step["answer"] == "yes" else node.if_yes
            if step["near_threshold"]:
                branch, state = title(other), "near"
        add("done", step["question"], answer=step["answer"], branch=branch, branch_state=state, depth=step["depth"])
    if found["next"] is not None:
        place = found["next"]["node"]
        add("now", found["next"]["question"])
        seen = {step["node"] for step in found["path"]} | {place}
        for _ in range(30):
            node = tree.nodes.get(place)
            if node is None:
                break
            onward = node.if_yes if node.finding == "no" else node.if_no
            if onward in seen:
                break
            seen.add(onward)
            place = onward
            if place in tree.nodes:
                add("left", tree.nodes[place].question)
            else:
                add("end", title(place))
    else:
        for item in found["directions"]:
            if item["leaf"] in reached:
                add("end", item["title"])
    return {"rows": rows, "height": ROW * len(rows)}


def _question(trees: Trees, scenario: str, node: str) -> str:
    tree = trees.scenarios.get(scenario)
    known = None if tree is None else tree.nodes.get(node)
    return node if known is None else known.question


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def view(trees: Trees, found: Mapping[str, Any]) -> dict[str, Any]:
    """The context that every page of a diagnosis needs."""
    best = max(
        (
            trial["predicted_saving_s"]
            for item in found["directions"]
            for trial in item["techniques"]
            if trial["predicted_saving_s"] is not None
        ),
        default=0.0,
    )
    return {
        "d": found,
        "drawing": drawing(trees, found),
        "tools": TOOLS,
        "status_words": STATUS_WORDS,
        "origin_words": ORIGIN_WORDS,
        "kind_badges": KIND_BADGES,
        "op_words": OP_WORDS,
        "best_saving": best,
        "told": told,
        "scenario_titles": {tree.id: tree.title for tree in trees.scenarios.values()},
        "changes": _changes(found),
    }


def told(limit: str | None, words: str) -> str:
    """A value as it is known: exactly, or at most or at least so much."""
    return f"{limit_words(limit, words)}{words}"


def _changes(found: Mapping[str, Any]) -> dict[str, str]:
    """What each technique costs or saves beside time, in words."""
    words: dict[str, str] = {}
    for item in found["directions"]:
        for trial in item["techniques"]:
            parts = []
            for key, label, unit in CHANGE_WORDS:
                value = trial["changes"].get(key)
                if value:
                    amount = formatting.quantity(abs(value), unit) if unit != "1" else f"{abs(value):,.0f}"
                    parts.append(f"{'+' if value > 0 else formatting.MINUS}{amount} {label}")
            words[trial["id"]] = ", ".join(parts)
    return words
