"""The communication page's controls: what each may hold, and how its text is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from app.catalog.published import collective_units
from app.domain.errors import DomainError, InvalidInput, MissingFigure
from app.domain.precision import PRECISIONS
from app.services.communication_page import BY_ID, QUESTIONS, Question, body_of, place_of
from app.storage.errors import NotFound
from app.web.forms import MAX_TEXT, FormErrors, parse_quantity, sentence, whole_between


@dataclass(frozen=True, slots=True)
class Control:
    """One control. An empty one takes its default, or nothing where that is empty too."""

    name: str
    label: str
    kind: Literal["whole", "bytes", "seconds", "share", "times", "select", "text"]
    default: str = ""
    hint: str = ""
    unit: str = ""
    least: float = 1
    most: float = 2**40
    options: tuple[tuple[str, str], ...] = ()
    stays_empty: bool = False
    """Whether an emptied control means nothing, instead of its default."""


_COUNT = 1_048_576
CONTROLS: Mapping[str, Control] = {
    c.name: c
    for c in (
        Control("hardware", "Device", "text", "nvidia-h200-sxm"),
        Control("model", "Model", "text", "llama-3.1-8b"),
        Control(
            "kind",
            "Collective",
            "select",
            "all_reduce",
            options=(
                ("all_reduce", "All-reduce"),
                ("all_gather", "All-gather"),
                ("reduce_scatter", "Reduce-scatter"),
                ("all_to_all", "All-to-all"),
                ("broadcast", "Broadcast"),
                ("p2p", "Point to point"),
            ),
        ),
        Control("size", "Message size", "bytes", "1 GiB", "The whole array, as nccl-tests counts it", "B"),
        Control("ranks", "Ranks", "whole", "8", "Devices that take part", least=2, most=_COUNT),
        Control("per_node", "Ranks of a node", "whole", "", "Empty: as many as share the fast fabric", most=_COUNT),
        Control(
            "in_switch",
            "Switch reduces",
            "select",
            "",
            options=(("", "As the profile says"), ("yes", "Yes"), ("no", "No")),
        ),
        Control(
            "algorithm",
            "Algorithm",
            "select",
            "",
            options=(
                ("", "The fastest"),
                ("ring", "Ring"),
                ("tree", "Tree"),
                ("hierarchical", "Hierarchical"),
                ("in_switch", "In-switch"),
            ),
        ),
        Control(
            "ceilings",
            "Bound on",
            "select",
            "peak",
            options=(("peak", "The link's full rate"), ("achievable", "What was measured")),
        ),
        Control("alpha_up", "Start-up, in a node", "seconds", "", "Empty: 3 µs, assumed", "µs", 0, 1),
        Control(
            "alpha_out",
            "Start-up, between nodes",
            "seconds",
            "",
            "Empty: 8 µs, 15 µs over Ethernet; assumed",
            "µs",
            0,
            1,
        ),
        Control(
            "efficiency",
            "Share of the link's rate",
            "share",
            "",
            "Empty: as measured on the device, or 0.8",
            least=0.01,
            most=1,
        ),
        Control(
            "pattern",
            "Collective",
            "select",
            "reduce_scatter",
            options=(
                ("reduce_scatter", "Reduce-scatter of the output"),
                ("all_reduce", "All-reduce of the output"),
                ("all_gather", "All-gather of the input"),
            ),
        ),
        Control("m", "m", "whole", "8192", "Rows: tokens"),
        Control("n", "n", "whole", "8192", "Columns of the output"),
        Control("k", "k", "whole", "3584", "Inner dimension"),
        Control("dtype", "Precision", "select", "bf16", options=tuple((name, name) for name in PRECISIONS)),
        Control("chunks", "Chunks", "whole", "", "Empty: the best number", most=256),
        Control("launch", "Launch of a chunk", "seconds", "", "Empty: the device's launch cost", "µs", 0, 1),
        Control(
            "contention",
            "Taken by the exchange",
            "share",
            "",
            f"Share of the compute units; empty: {collective_units().curve.enough} of them",
            least=0,
            most=0.9,
        ),
        Control(
            "units",
            "Or its units",
            "whole",
            "",
            f"Compute units given to the exchange: fewer than {collective_units().curve.enough} slow it; "
            "0 for copy engines",
            least=0,
            most=4096,
        ),
        Control(
            "step", "Step", "seconds", "6.73838 ms", "As measured, with communication", "ms", 0, 1e6, stays_empty=True
        ),
        Control(
            "compute_only",
            "Compute alone",
            "seconds",
            "6.35351 ms",
            "The same batch without it",
            "ms",
            0,
            1e6,
            stays_empty=True,
        ),
        Control("other", "Other waits", "seconds", "", "Data, host, evaluation", "ms", 0, 1e6),
        Control(
            "streams",
            "Streams of a profile",
            "times",
            "6.35351 ms; 1.01238 ms",
            "Parted by semicolons; shown beside, never used",
            "ms",
            0,
            1e6,
            stays_empty=True,
        ),
        Control("run", "Run", "text", "", "Its id: fills what is empty above from its evidence"),
        Control("batch", "Batch", "whole", "1", "Sequences of one replica at once", most=10_000_000),
        Control("seq", "Sequence length", "whole", "8192", "Tokens; 8k is 8,192", most=100_000_000),
        Control("prompt", "Sequence length", "whole", "131072", "Tokens; 128k is 131,072", most=100_000_000),
        Control("dp", "Data-parallel ranks", "whole", "64", "They share the states", least=2, most=_COUNT),
        Control("tp", "Tensor-parallel ranks", "whole", "1", most=4096),
        Control("cp", "Context-parallel ranks", "whole", "8", "They share a sequence", least=2, most=4096),
        Control("accumulate", "Micro-batches", "whole", "1", "Accumulated in a step", most=1_000_000),
        Control(
            "recompute",
            "Recompute",
            "select",
            "none",
            options=(("none", "None"), ("selective", "Selective: attention"), ("full", "Full: every layer")),
        ),
        Control("prefetch", "Prefetch", "whole", "1", "Units gathered ahead", least=0, most=64),
        Control("phase", "Phase", "select", "prefill", options=(("prefill", "Prefill"), ("train", "Training"))),
        Control(
            "schedule",
            "Schedule",
            "select",
            "1f1b",
            options=(
                ("gpipe", "GPipe"),
                ("1f1b", "1F1B"),
                ("interleaved", "Interleaved 1F1B"),
                ("zero_bubble", "Zero bubble (ZB-H1)"),
                ("dualpipe", "DualPipe"),
            ),
        ),
        Control("stages", "Stages", "whole", "4", most=256),
        Control("micro_batches", "Micro-batches", "whole", "8", most=4096),
        Control("virtual_stages", "Chunks of a stage", "whole", "1", "Above 1 only interleaved", most=64),
        Control("forward", "Forward pass", "seconds", "10 ms", "Of one micro-batch on one stage", "ms", 0, 1e6),
        Control("backward", "Backward pass", "seconds", "20 ms", "With its weight gradients", "ms", 0, 1e6),
        Control("weight_gradient", "Weight gradients", "seconds", "", "Empty: half of the backward pass", "ms", 0, 1e6),
        Control("hand_over", "Hand-over", "seconds", "", "Between two stages", "ms", 0, 1e6),
    )
}


_EXAMPLE_TIMES = ("step", "compute_only", "other", "streams")


@dataclass(frozen=True, slots=True)
class CommunicationForm:
    """The page's controls as typed. `values` are those of the open question, read."""

    question: Question
    typed: Mapping[str, str]
    values: Mapping[str, Any]
    errors: FormErrors = field(default_factory=FormErrors)

    def query(self, **changes: str) -> dict[str, str]:
        """The address of this state: only what differs from the defaults, and the open question."""
        found = {"view": self.question.id} if self.question is not QUESTIONS[0] else {}
        found |= {name: text for name, text in self.typed.items() if text != CONTROLS[name].default}
        found |= changes
        return {
            name: text
            for name, text in found.items()
            if (text != QUESTIONS[0].id if name == "view" else text != CONTROLS[name].default)
        }


def communication_form(query: Mapping[str, str]) -> CommunicationForm:
    """Read an address. Controls of the other questions are kept as they are."""
    question = BY_ID.get(query.get("view", ""), QUESTIONS[0])
    typed, values, errors = {}, {}, {}
    # a run has times of its own: the example's are no longer meant
    of_run = _EXAMPLE_TIMES if question.id == "exposed" and query.get("run", "").strip() else ()
    for name, control in CONTROLS.items():
        text = query.get(name, control.default).strip()
        if name in of_run and text == control.default:
            text = ""
        typed[name] = text[: MAX_TEXT * 2]
        if name not in question.controls:
            if len(text) > MAX_TEXT:
                typed[name] = control.default
            continue
        try:
            values[name] = read(control, text if control.stays_empty else text or control.default)
        except ValueError as error:
            errors[name] = str(error)
            values[name] = None
    return CommunicationForm(question, typed, values, FormErrors(errors))


def read(control: Control, text: str) -> Any:
    """The value of a control's text, None for an empty one. Raises ValueError with what would be right."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"{control.label}: at most {MAX_TEXT} characters.")
    if control.kind == "select":
        if text not in {value for value, _ in control.options}:
            raise ValueError(f"{control.label}: {text[:40]!r} is not offered here.")
        return text
    if control.kind == "text":
        return text
    if not text:
        return None
    if control.kind == "whole":
        return whole_between(text, (control.label, int(control.least), int(control.most)), control.default or 8)
    if control.kind == "times":
        return [_quantity(control, part, "s") for part in text.split(";") if part.strip()][:64] or None
    if control.kind == "share":
        return _share(control, text)
    return _quantity(control, text, "B" if control.kind == "bytes" else "s")


def _quantity(control: Control, text: str, dimension: str) -> float:
    value = parse_quantity(text, dimension, control.unit)
    if dimension == "B" and not 0 < value <= 2.0**60:
        raise ValueError(f"{control.label} must be more than 0 and at most 1 EiB.")
    if dimension == "s" and not control.least <= value <= control.most:
        raise ValueError(f"{control.label} must be from {control.least:g} to {control.most:,g} s.")
    return value


def _share(control: Control, text: str) -> float:
    plain = text.removesuffix("%").strip()
    try:
        value = float(plain) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not control.least <= value <= control.most:
        raise ValueError(f"{control.label} must be a number from {control.least:g} to {control.most:g}.")
    return value


def errors_of(question: Question, error: ValidationError | DomainError | NotFound) -> FormErrors:
    """What a refused question says, beside the control it belongs to."""
    if isinstance(error, ValidationError):
        by_field: dict[str, str] = {}
        general: list[str] = []
        for problem in error.errors():
            name = place_of(question, tuple(problem["loc"]))
            if name is None:
                general.append(sentence(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"))
            else:
                by_field[name] = sentence(problem["msg"])
        return FormErrors(by_field, tuple(general))
    if isinstance(error, InvalidInput):
        name = place_of(question, error.loc)
        return FormErrors({name: sentence(error.reason)}) if name else FormErrors(general=(sentence(str(error)),))
    if isinstance(error, NotFound):
        return FormErrors({"run": "There is no such run: give the id that its page's address ends with."})
    name = "hardware" if isinstance(error, MissingFigure) else "model"
    if isinstance(error, MissingFigure) and "throughput" in error.figure and "dtype" in question.controls:
        name = "dtype"
    return FormErrors({name: sentence(str(error))} if name in question.controls else {}, ())


def address_of_request(view: str, body: Mapping[str, Any]) -> dict[str, str] | None:
    """The page's address of a question that was put as a body of its call; None where no controls hold it.

    The address is read again and has to give the same body, defaults of the call filled in on both sides.
    """
    question = BY_ID[view]
    typed: dict[str, str] = {name: "" for name in question.controls if CONTROLS[name].stays_empty}
    for name, value in _flat(body):
        place = question.places.get(name, name)
        if value is None or place not in question.controls:
            continue
        typed[place] = _typed(CONTROLS[place], value)
    form = communication_form({"view": view, **typed})
    if form.errors:
        return None
    same = _filled(body_of(question, form.values)) == _filled(body)
    return form.query() if same else None


def _flat(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of a body, those of what lies in it included."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _typed(control: Control, value: Any) -> str:
    """A value as its control's text: exactly the same number when it is read again."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if control.kind == "times":
        return "; ".join(f"{time!r} s" for time in value)
    if control.kind in ("bytes", "seconds"):
        return f"{value!r} {'B' if control.kind == 'bytes' else 's'}"
    return repr(value) if isinstance(value, float) else str(value)


def _filled(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a body says, without what it leaves to its call: fields that are null or hold nothing."""
    return {name: value for name, value in sorted(_flat(body)) if value is not None and value != []}
