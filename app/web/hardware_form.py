"""The form that copies or edits a hardware profile: figures in the units people use, to the catalogue's shape and back.

A field is named like the figure in the catalogue's JSON (`peak.flop_per_s.bf16`), so that a refusal of the codec finds
its field without a table of names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from app.catalog.codec import PEAK_PRECISIONS, hardware_to_json
from app.catalog.fields import Range
from app.catalog.hardware_codec import (
    CACHE,
    CAPACITY,
    CLOCK,
    COMPUTE_RATE,
    EXP_RATE,
    LINK_RATE,
    MEMORY_RATE,
    OVERHEAD,
    POWER,
)
from app.domain.errors import InvalidInput
from app.domain.hardware import HardwareProfile
from app.services.hardware_pages import CLASS_LABELS
from app.web import formatting
from app.web.forms import FormErrors, parse_quantity, quantity_text, sentence

MAX_FIELD: Final = 20_000

FieldKind = Literal["text", "long", "lines", "whole", "quantity", "flag", "choice"]


@dataclass(frozen=True, slots=True)
class HardwareField:
    """One field. `unit` is what a bare number is in, `dimension` the SI unit it is read into."""

    name: str
    label: str
    kind: FieldKind = "text"
    dimension: str = ""
    unit: str = ""
    allowed: Range | None = None
    hint: str = ""
    required: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """Id of the control, as the field macro makes it."""
        return "f-" + self.name.replace(".", "-").replace("_", "-")


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """Fields under one heading; `rows` puts fields side by side."""

    id: str
    title: str
    rows: tuple[tuple[HardwareField, ...], ...]


def _rate(name: str, label: str, allowed: Range, unit: str = "GB/s", **more: Any) -> HardwareField:
    return HardwareField(name, label, "quantity", "B/s", unit, allowed, **more)


def _size(name: str, label: str, unit: str, allowed: Range, **more: Any) -> HardwareField:
    return HardwareField(name, label, "quantity", "B", unit, allowed, **more)


def _compute(name: str, precision: str, word: str) -> HardwareField:
    unit = "TOP/s" if precision.startswith("int") else "TFLOP/s"
    return HardwareField(f"{name}.{precision}", f"{precision} {word}", "quantity", "FLOP/s", unit, COMPUTE_RATE)


GROUPS: Final = (
    FieldGroup(
        "identity",
        "Name and kind",
        (
            (HardwareField("name", "Name", required=True, hint="Also makes the address of a new profile"),),
            (HardwareField("vendor", "Vendor"), HardwareField("architecture", "Architecture")),
            (
                HardwareField("device_class", "Class", "choice", options=(("", "not stated"), *CLASS_LABELS.items())),
                HardwareField("form_factor", "Form factor"),
                HardwareField("release_year", "Year", "whole"),
            ),
        ),
    ),
    FieldGroup(
        "memory",
        "Memory",
        (
            (
                _size("memory_bytes", "Capacity", "GB", CAPACITY),
                HardwareField("memory_type", "Type"),
            ),
            (
                _rate("peak.memory_bandwidth_bytes_per_s", "Peak bandwidth", MEMORY_RATE, required=True),
                _rate("achievable.memory_bandwidth_bytes_per_s", "Achieved bandwidth", MEMORY_RATE),
                _rate("achievable.l2_bandwidth_bytes_per_s", "Achieved L2 bandwidth", MEMORY_RATE),
            ),
            (
                _size("l2_bytes", "L2 cache", "MiB", CACHE),
                _size("last_level_cache_bytes", "Last-level cache", "MiB", CACHE),
                _size("shared_memory_per_unit_bytes", "Shared memory of a unit", "KiB", CACHE),
            ),
        ),
    ),
    FieldGroup(
        "compute",
        "Compute: dense peaks, and what was reached",
        tuple(
            (_compute("peak.flop_per_s", precision, "peak"), _compute("achievable.flop_per_s", precision, "achieved"))
            for precision in PEAK_PRECISIONS
        ),
    ),
    FieldGroup(
        "links",
        "Links, one way for each device",
        (
            (
                HardwareField("scale_up.name", "Scale-up fabric"),
                _rate("scale_up.bandwidth_bytes_per_s", "Bandwidth", LINK_RATE, hint="Half of a two-way total"),
                _rate("scale_up.peer_to_peer_bytes_per_s", "One pair", LINK_RATE),
            ),
            (
                HardwareField("scale_up.domain_size", "Devices in the domain", "whole"),
                HardwareField("scale_up.topology", "Topology"),
                _rate("achievable.scale_up_bus_bandwidth_bytes_per_s", "Achieved bus bandwidth", LINK_RATE),
            ),
            (
                HardwareField("scale_out.name", "Network"),
                _rate("scale_out.bandwidth_bytes_per_s", "Line rate", LINK_RATE, "Gbit/s"),
                _rate("pcie_bandwidth_bytes_per_s", "PCIe", LINK_RATE),
            ),
            (HardwareField("scale_up.in_network_reduction", "The scale-up switches can reduce", "flag"),),
        ),
    ),
    FieldGroup(
        "execution",
        "Execution and power",
        (
            (
                HardwareField("compute_units", "Compute units", "whole"),
                HardwareField("compute_unit_kind", "Called", hint="SM, CU, core"),
                HardwareField("boost_clock_hz", "Boost clock", "quantity", "Hz", "MHz", CLOCK),
            ),
            (
                HardwareField("launch_overhead_s", "Launch of a kernel", "quantity", "s", "us", OVERHEAD),
                HardwareField("graph_node_overhead_s", "Node of a graph", "quantity", "s", "us", OVERHEAD),
                HardwareField("peak.exponentials_per_s", "Exponentials", "quantity", "exp/s", "Gexp/s", EXP_RATE),
                HardwareField("board_power_w", "Board power", "quantity", "W", "W", POWER),
            ),
        ),
    ),
    FieldGroup(
        "notes",
        "Notes",
        (
            (HardwareField("achievable.note", "How the achieved figures came about", "long"),),
            (HardwareField("notes", "Notes", "lines", hint="One a line"),),
            (HardwareField("aliases", "Other names", "lines", hint="One a line; the search finds them"),),
        ),
    ),
)
"""Every field of the form. What has no field here (sources, tile facts) stays as it is."""

FIELDS: Final = {field.name: field for group in GROUPS for row in group.rows for field in row}


@dataclass(frozen=True, slots=True)
class HardwareForm:
    """What was typed, and the profile in the catalogue's shape where every field could be read."""

    typed: Mapping[str, str]
    errors: FormErrors
    data: Mapping[str, Any]

    def summary(self) -> list[dict[str, str]]:
        """The messages for the top of the form, in the order of its fields."""
        listed = [
            {"id": field.id, "label": field.label, "message": self.errors.by_field[name]}
            for name, field in FIELDS.items()
            if name in self.errors.by_field
        ]
        return [*listed, *({"id": "", "label": "", "message": text} for text in self.errors.general)]

    def with_error(self, error: InvalidInput) -> HardwareForm:
        """The form with what the codec refused beside the field that it is about."""
        name = ".".join(str(part) for part in error.loc)
        near = next((field for field in FIELDS if field == name or name.startswith(f"{field}.")), None)
        if near is None:
            return HardwareForm(self.typed, FormErrors(general=(sentence(str(error)),)), self.data)
        return HardwareForm(self.typed, FormErrors({near: sentence(error.reason)}), self.data)


def shown_form(profile: HardwareProfile) -> HardwareForm:
    """The form filled with a profile."""
    data = hardware_to_json(profile)
    return HardwareForm({name: _shown(field, _get(data, name)) for name, field in FIELDS.items()}, FormErrors(), data)


def read_form(typed: Mapping[str, str], base: HardwareProfile) -> HardwareForm:
    """The form as sent: the base profile with every field replaced by what was typed. An empty field drops a figure."""
    data = hardware_to_json(base)
    errors: dict[str, str] = {}
    kept = {name: typed.get(name, "")[:MAX_FIELD].replace("\r\n", "\n") for name in FIELDS}
    for name, field in FIELDS.items():
        try:
            _set(data, name, _read(field, kept[name]))
        except ValueError as error:
            errors[name] = str(error)
    # Links need a name of their own in the shape; without any figure there is no link.
    for link in ("scale_up", "scale_out"):
        if link in data and not set(data[link]) - {"name", "note"} and not data[link].get("name"):
            del data[link]
    if not kept["name"].strip():
        errors["name"] = "Give the profile a name."
    if "peak.memory_bandwidth_bytes_per_s" not in errors and not kept["peak.memory_bandwidth_bytes_per_s"].strip():
        errors["peak.memory_bandwidth_bytes_per_s"] = "Give the memory bandwidth, for example 3350 or 3.35 TB/s."
    peaks = [f"peak.flop_per_s.{precision}" for precision in PEAK_PRECISIONS]
    if not any(kept[name].strip() for name in peaks):
        errors["peak.flop_per_s.bf16"] = "Give at least one dense peak, for example 989.4 for bf16."
    return HardwareForm(kept, FormErrors(errors), data)


def differences(theirs: HardwareProfile, form: HardwareForm) -> list[tuple[str, str, str]]:
    """(field, as stored, as typed) where the stored profile and the form differ, for somebody who comes second."""
    stored = shown_form(theirs).typed
    return [
        (field.label, _with_unit(field, stored[name]), _with_unit(field, form.typed[name]))
        for name, field in FIELDS.items()
        if stored[name].strip() != form.typed[name].strip()
    ]


def _with_unit(field: HardwareField, text: str) -> str:
    text = text.strip()
    if not text:
        return "empty"
    bare = field.unit and text[-1].isdigit()
    return f"{text} {field.unit}" if bare else text if len(text) <= 200 else text[:200] + "…"


def _read(field: HardwareField, text: str) -> Any:
    """The JSON value of a field, None for an empty one. Raises ValueError with a message for the person."""
    text = text.strip()
    if not text:
        return None
    if field.kind == "flag":
        return True
    if field.kind == "lines":
        return [line.strip() for line in text.split("\n") if line.strip()]
    if field.kind == "whole":
        return _whole(text)
    if field.kind != "quantity":
        return text
    value = parse_quantity(text, field.dimension, field.unit)
    if field.allowed is not None and not field.allowed.low <= value <= field.allowed.high:
        shown = formatting.quantity(value, field.dimension, decimal=True)
        low, high = (
            formatting.quantity(end, field.dimension, decimal=True) for end in (field.allowed.low, field.allowed.high)
        )
        how = "negative" if value < 0 else "too small" if value < field.allowed.low else "too large"
        raise ValueError(f"That is {shown}, {how} for this figure: {low} to {high} can be. Check the unit.")
    return value


def _whole(text: str) -> int:
    digits = text.replace(",", "").replace("_", "").replace(" ", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        raise ValueError(f"{text[:40]!r} is not a whole number.")
    return int(digits)


def _shown(field: HardwareField, value: Any) -> str:
    if value is None:
        return ""
    if field.kind == "flag":
        return "1" if value else ""
    if field.kind == "lines":
        return "\n".join(value)
    if field.kind == "quantity":
        return quantity_text(float(value), field.dimension, field.unit)
    return str(value)


def _get(data: Mapping[str, Any], name: str) -> Any:
    here: Any = data
    for part in name.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return None
        here = here[part]
    return here


def _set(data: dict[str, Any], name: str, value: Any) -> None:
    """Set or drop the member at a dotted name; objects that become empty are dropped too."""
    parts: Sequence[str] = name.split(".")
    here = data
    trail: list[tuple[dict[str, Any], str]] = []
    for part in parts[:-1]:
        trail.append((here, part))
        here = here.setdefault(part, {})
    if value is None:
        here.pop(parts[-1], None)
    else:
        here[parts[-1]] = value
    for holder, part in reversed(trail):
        if not holder[part]:
            del holder[part]
