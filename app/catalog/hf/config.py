"""Reads a `config.json` field by field, under all names that families give a field, and keeps what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.catalog.fields import Loc, checked_integer, json_type
from app.domain.errors import InvalidInput

MAX_LAYERS = 2000
MAX_HEADS = 100_000
MAX_WIDTH = 10_000_000
MAX_EXPERTS = 100_000
MAX_TOKENS = 10**9

HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads")
HEAD_DIM = ("head_dim", "kv_channels", "d_head")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "inner_hidden_size")
VOCAB = ("vocab_size", "padded_vocab_size")
POSITIONS = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
    "model_max_length",
)  # fmt: skip
ACTIVATION = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "mlp_hidden_act",
    "feed_forward_proj",
)


class Config:
    """One object of a configuration with its path. A field that is null counts as absent.

    `assumptions` is shared by all parts of one configuration. `class_defaults` are the values that transformers gives
    a field of this object that is absent: files leave them out of nested objects.
    """

    def __init__(
        self,
        data: object,
        loc: Loc,
        assumptions: list[str] | None = None,
        class_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(data, Mapping):
            raise InvalidInput(loc, f"expected an object, got {json_type(data)}")
        self.data: Mapping[str, Any] = data
        self.loc = loc
        self.assumptions: list[str] = [] if assumptions is None else assumptions
        self.class_defaults: Mapping[str, Any] = class_defaults or {}

    # -- finding fields -------------------------------------------------------------------------------------------

    def at(self, key: str | int) -> Loc:
        return (*self.loc, key)

    def fail(self, key: str, reason: str) -> InvalidInput:
        return InvalidInput(self.at(key), reason)

    def has(self, *names: str) -> bool:
        return any(self.data.get(name) is not None for name in names)

    def path(self, name: str) -> str:
        """The field as sentences name it: `text_config.num_hidden_layers`."""
        return ".".join(str(part) for part in (*self.loc[1:], name))

    def assume(self, sentence: str) -> None:
        """Keep a sentence that says what was filled in and why; the same one is kept once."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def filled(self, name: str, value: Any, why: str) -> Any:
        """Keep that `name` is absent and taken as `value`, and give that value back."""
        self.assume(f"{self.path(name)} is not given: taken as {_shown(value)}, {why}")
        return value

    def within(self, name: str) -> Config | None:
        """The nested object of this name."""
        return Config(self.data[name], self.at(name), self.assumptions) if self.has(name) else None

    # -- values ---------------------------------------------------------------------------------------------------

    def integer(self, names: str | Sequence[str], low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """A whole number under any of the names. Two names with different numbers are refused."""
        found: tuple[str, int] | None = None
        for name in (names,) if isinstance(names, str) else names:
            value = self.data.get(name)
            if value is None:
                continue
            number = checked_integer(value, low, high, self.at(name))
            if found is not None and number != found[1]:
                raise self.fail(name, f"is {number}, but {found[0]} is {found[1]}: they mean the same")
            found = found or (name, number)
        if found is not None:
            return found[1]
        for name in (names,) if isinstance(names, str) else names:
            if name in self.class_defaults:
                default = self.class_defaults[name]
                return None if default is None else int(self.filled(name, default, _CLASS_DEFAULT))
        return None

    def needed(self, names: str | Sequence[str], what: str, low: int = 1, high: int = MAX_WIDTH) -> int:
        """A whole number that must be there. Raises InvalidInput at its usual name."""
        value = self.integer(names, low, high)
        if value is None:
            all_names = (names,) if isinstance(names, str) else tuple(names)
            others = f" (or {', '.join(all_names[1:])})" if len(all_names) > 1 else ""
            raise self.fail(all_names[0], f"is missing: give {what}{others}")
        return value

    def integer_or(
        self, names: str | Sequence[str], default: int, why: str, low: int = 1, high: int = MAX_WIDTH
    ) -> int:
        """A whole number, or a default that is listed with its reason."""
        value = self.integer(names, low, high)
        return int(self.filled(names if isinstance(names, str) else names[0], default, why)) if value is None else value

    def flag(self, name: str) -> bool | None:
        value = self.data.get(name)
        if value is None:
            value = self.class_defaults.get(name)
        if value is None:
            return None
        if not isinstance(value, bool):
            raise self.fail(name, f"expected true or false, got {json_type(value)}")
        return value

    def flag_or(self, name: str, default: bool, why: str = "", *, quiet: bool = False) -> bool:
        value = self.flag(name)
        if value is None:
            return default if quiet else bool(self.filled(name, default, why or _CLASS_DEFAULT))
        return value

    def text(self, *names: str, limit: int = 200) -> str | None:
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.fail(name, f"expected text, got {json_type(value)}")
            if len(value) > limit:
                raise self.fail(name, f"is {len(value)} characters long: at most {limit}")
            cleaned = "".join(c for c in value if c.isprintable()).strip()
            if cleaned:
                return cleaned
        return None

    def factor(self, name: str, default: float) -> float:
        """A positive number such as an expansion ratio."""
        value = self.data.get(name)
        if value is None:
            return float(self.filled(name, default, _CLASS_DEFAULT))
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 10_000:
            raise self.fail(name, "expected a number above 0, at most 10,000")
        return float(value)

    def entries(self, name: str, length: int | None = None) -> list[Any] | None:
        """A list, of `length` entries where that is given."""
        value = self.data.get(name)
        if value is None:
            value = self.class_defaults.get(name)
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise self.fail(name, f"expected a list, got {json_type(value)}")
        if len(value) > MAX_LAYERS:
            raise self.fail(name, f"has {len(value)} entries: at most {MAX_LAYERS}")
        if length is not None and len(value) != length:
            raise self.fail(name, f"has {len(value)} entries, but there are {length} layers")
        return list(value)

    def integers(self, name: str, low: int, high: int, length: int | None = None) -> list[int] | None:
        entries = self.entries(name, length)
        if entries is None:
            return None
        return [checked_integer(value, low, high, (*self.at(name), i)) for i, value in enumerate(entries)]

    def texts(self, name: str, choices: Sequence[str], length: int | None = None) -> list[str] | None:
        entries = self.entries(name, length)
        for i, value in enumerate(entries or ()):
            if value not in choices:
                shown = repr(value[:60]) if isinstance(value, str) else json_type(value)
                raise InvalidInput((*self.at(name), i), f"{shown} is not known here: expected {', '.join(choices)}")
        return entries

    # -- what every transformer has -------------------------------------------------------------------------------

    def hidden(self) -> int:
        return self.needed(HIDDEN, "the width of the residual stream")

    def layers(self) -> int:
        return self.needed(LAYERS, "the number of layers", high=MAX_LAYERS)

    def heads(self) -> int:
        return self.needed(HEADS, "the number of query heads", high=MAX_HEADS)

    def vocab(self) -> int:
        return self.needed(VOCAB, "the number of rows of the token embedding", high=10**8)

    def positions(self) -> int | None:
        for name in POSITIONS:
            if self.has(name):
                return self.integer(name, 1, MAX_TOKENS)
        return self.integer("max_position_embeddings", 1, MAX_TOKENS)

    def activation(self) -> str | None:
        return self.text(*ACTIVATION, limit=100)


_CLASS_DEFAULT = "the default of its class in transformers"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)
