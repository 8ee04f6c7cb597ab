"""The state of a walk as an address: scenario, what it is about, stated values and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from pydantic import ValidationError
from starlette.datastructures import FormData, QueryParams

from app.domain.decision_tree import Trees, Value
from app.domain.errors import InvalidInput
from app.services.context import Context
from app.services.contracts import BoundRequest
from app.services.diagnose import MAX_NOTES, MAX_TITLE, DiagnosisRequest, checked_value
from app.services.references import resolve_model
from app.services.what_if import state_of
from app.web.forms import lab_form, sentence

MAX_ADDRESS: Final = 6000
MAX_LAB: Final = 3000
_ANSWERS: Final = ("yes", "no", "unknown")


@dataclass(frozen=True, slots=True)
class DiagnoseForm:
    """What an address says. `lab` is the what-if lab's own query string; `typed` keeps a value that was refused."""

    scenario: str = ""
    run: str = ""
    lab: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Value] = field(default_factory=dict)
    title: str = ""
    notes: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)

    def address(self, **changes: Any) -> str:
        """The page's address of this state."""
        state = replace(self, **changes)
        query = {
            "scenario": state.scenario,
            "run": state.run,
            "lab": state.lab,
            "values": ",".join(f"{name}:{_written(value)}" for name, value in state.evidence.items()),
            "answers": ",".join(f"{node}:{answer}" for node, answer in state.answers.items()),
        }
        kept = {name: value for name, value in query.items() if value}
        return f"/diagnose?{urlencode(kept)}" if kept else "/diagnose"

    def hidden(self, *without: str) -> list[tuple[str, str]]:
        """The state as hidden fields of a form."""
        query = self.address().partition("?")[2]
        return [(name, value) for name, value in parse_qsl(query) if name not in without]

    def without_answer(self, node: str) -> str:
        return self.address(answers={name: answer for name, answer in self.answers.items() if name != node})

    def without_value(self, name: str) -> str:
        return self.address(evidence={key: value for key, value in self.evidence.items() if key != name})

    @property
    def back(self) -> str:
        """The address without the last answer."""
        return self.address(answers=dict(list(self.answers.items())[:-1])) if self.answers else ""

    def request(self, ctx: Context) -> DiagnosisRequest:
        """The body of `POST /diagnoses`. Raises ValidationError or InvalidInput."""
        body: dict[str, Any] = {
            "scenario": self.scenario,
            "evidence": dict(self.evidence),
            "answers": dict(self.answers),
            "title": self.title,
            "notes": self.notes,
        }
        if self.run:
            body["run"] = self.run
        if self.lab:
            form = lab_form(dict(parse_qsl(self.lab)[:100]))
            if form.errors:
                told = [*form.errors.by_field.values(), *form.errors.general]
                raise InvalidInput(("estimate",), told[0])
            model = resolve_model(ctx, form.state.model)[0]
            body["estimate"] = form.state.request(model).model_dump(mode="json", exclude_unset=True)
        return DiagnosisRequest.model_validate(body)


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.12g}"


def read_form(trees: Trees, values: QueryParams | FormData) -> DiagnoseForm:
    """Read an address or a form: the state, and what it adds (`answer`, `value.NAME`, `undo`). Never raises."""

    def text(name: str, most: int) -> str:
        found = values.get(name, "")
        return found.strip()[:most] if isinstance(found, str) else ""

    errors: dict[str, str] = {}
    typed: dict[str, str] = {}
    scenario = text("scenario", 40)
    if scenario and scenario not in trees.scenarios:
        errors["scenario"] = f"There is no scenario {scenario!r}: choose one."
        scenario = ""
    nodes = {name for tree in trees.scenarios.values() for name in tree.nodes}
    answers: dict[str, str] = {}
    for pair in (*text("answers", MAX_ADDRESS).split(","), text("answer", 80)):
        node, _, answer = pair.partition(":")
        if node in nodes and answer in _ANSWERS:
            answers.pop(node, None)  # an answer given again is the last one
            answers[node] = answer
    evidence: dict[str, Value] = {}
    for pair in text("values", MAX_ADDRESS).split(","):
        name, _, told = pair.partition(":")
        if name in trees.metrics and told:
            _take(trees, name, told, evidence, errors, typed)
    for key in list(values):
        if key.startswith("value.") and key[6:] in trees.metrics and text(key, 60):
            _take(trees, key[6:], text(key, 60), evidence, errors, typed)
    added = text("metric", 60)
    if added in trees.metrics and text("value", 60):
        _take(trees, added, text("value", 60), evidence, errors, typed)
    title, notes = values.get("title", ""), values.get("notes", "")
    return DiagnoseForm(
        scenario=scenario,
        run=text("run", 80),
        lab=text("lab", MAX_LAB),
        answers=answers,
        evidence=evidence,
        title=title[: MAX_TITLE + 1] if isinstance(title, str) else "",
        notes=notes[: MAX_NOTES + 1] if isinstance(notes, str) else "",
        errors=errors,
        typed=typed,
    )


def _take(
    trees: Trees,
    name: str,
    told: str,
    evidence: dict[str, Value],
    errors: dict[str, str],
    typed: dict[str, str],
) -> None:
    try:
        evidence[name] = checked_value(trees, name, told)
    except InvalidInput as error:
        errors[f"value.{name}"] = sentence(f"{trees.metrics[name].label} {error.reason}")
        typed[name] = told


def lab_query(ctx: Context, body: Mapping[str, Any]) -> str:
    """The lab's query string of an estimate's body; empty where its controls cannot hold it."""
    try:
        request = BoundRequest.model_validate(body)
        state = state_of(request, resolve_model(ctx, request.model)[0])
    except (ValidationError, InvalidInput):
        return ""
    return "" if state is None else urlencode(state.query())


def form_of(ctx: Context, snapshot: Mapping[str, Any]) -> DiagnoseForm:
    """The state that a frozen diagnosis was made from, so that it can be taken up again."""
    request = snapshot["request"]
    return DiagnoseForm(
        scenario=request["scenario"],
        run=request.get("run") or "",
        lab=lab_query(ctx, request["estimate"]) if request.get("estimate") else "",
        answers=dict(request.get("answers", {})),
        evidence={name: value for name, value in request.get("evidence", {}).items() if value is not None},
    )
