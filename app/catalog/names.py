"""Names of devices and models as people type them and files print them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.domain.errors import UnsupportedArchitecture
from app.domain.model import ModelSpec
from app.domain.parameters import count_parameters


class UnknownName(LookupError):
    """No entry has this name; `close` holds names that look like it."""

    def __init__(self, what: str, name: str, close: tuple[str, ...]) -> None:
        self.what = what
        self.name = name
        self.close = close
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        super().__init__(f"no {what} is called {name[:100]!r}{hint}")


class AmbiguousName(LookupError):
    """Several entries have this name; `candidates` are their ids."""

    def __init__(self, what: str, name: str, candidates: tuple[str, ...]) -> None:
        self.what = what
        self.name = name
        self.candidates = candidates
        super().__init__(f"{name[:100]!r} is the name of several {what}s: say which of {', '.join(candidates)}")


@dataclass(frozen=True, slots=True)
class Guess:
    """An entry that a file's own words mean. `certain` is false where the words leave a doubt, which `why` states."""

    id: str
    why: str
    certain: bool = True


class NameIndex:
    """Ids by every name they go by."""

    def __init__(self, what: str, names: Mapping[str, Iterable[str]]) -> None:
        self.what = what
        self.ids = tuple(names)
        self._ids = {normal(id_): id_ for id_ in names}
        self._names: dict[str, tuple[str, ...]] = {}
        self._spelled: dict[str, str] = {normal(id_): id_ for id_ in names}
        self._tokens: dict[tuple[str, ...], set[str]] = {}
        for id_, others in names.items():
            for name in (id_, *others):
                key = normal(name)
                self._spelled.setdefault(key, name)
                known = self._names.get(key, ())
                if id_ not in known:
                    self._names[key] = (*known, id_)
                self._tokens.setdefault(tokens(name), set()).add(id_)

    def candidates(self, name: str) -> tuple[str, ...]:
        """The ids with this name: an id is always its own, an alias may be shared."""
        key = normal(name)
        if key in self._ids:
            return (self._ids[key],)
        return self._names.get(key, ())

    def resolve(self, name: str) -> str:
        """The one id with this name. Raises AmbiguousName or UnknownName."""
        found = self.candidates(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise AmbiguousName(self.what, name, found)
        near = difflib.get_close_matches(normal(name[:200]), list(self._spelled), n=3, cutoff=0.6)
        raise UnknownName(self.what, name, tuple(dict.fromkeys(self._spelled[key] for key in near)))

    def by_tokens(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The ids with a name of exactly these words."""
        return tuple(sorted(self._tokens.get(wanted, ())))


def normal(name: str) -> str:
    """A name without case, spaces, dashes and underscores."""
    return re.sub(r"[\s_\-]+", "", name.casefold())


def tokens(name: str) -> tuple[str, ...]:
    """The words of a name in order, lower case; dots inside version numbers stay."""
    return tuple(re.findall(r"[a-z0-9]+(?:\.[0-9]+)*\+?", name.casefold().replace("(r)", " ").replace("(tm)", " ")))


# -- devices --------------------------------------------------------------------------------------------------------

_PROCESSOR = re.compile(
    r"\b(processor|cpu|xeon|epyc|ryzen|threadripper|core\(tm\)|core i\d|eng sample|llvmpipe|vcpu)\b", re.IGNORECASE
)
_COUNT = re.compile(r"^\s*(?:\d{1,5}\s*[x×*]\s*)|(?:\s*[x×*]\s*\d{1,5})\s*$", re.IGNORECASE)


def guess_device(index: NameIndex, hint: str) -> Guess | None:
    """The one device that a text names. Several equal devices are one; different ones are not guessed.

    A part that names a processor or its built-in graphics (the host of the device) does not count.
    """
    if not hint or len(hint) > 2000:
        return None
    whole = _device(index, hint)
    if whole is not None:
        return Guess(whole, f"the file calls the device {hint.strip()!r}")
    parts = [part.strip() for part in re.split(r"[,;\n]|\s\+\s|\s/\s", hint) if part.strip()]
    found: set[str] = set()
    hosts = []
    for part in parts:
        id_ = _device(index, part)
        if id_ is not None:
            found.add(id_)
        elif _PROCESSOR.search(part):
            hosts.append(part)
        else:
            return None
    if len(found) != 1:
        return None
    id_ = found.pop()
    if hosts:
        return Guess(id_, f"the file names {hint.strip()!r}; {hosts[0]!r} is read as the host", certain=False)
    return Guess(id_, f"the file calls the devices {hint.strip()!r}")


def _device(index: NameIndex, text: str) -> str | None:
    bare = re.sub(r"\((?!R\)|TM\)|tm\)|r\))[^)]*\)", " ", text).strip()
    counted = _COUNT.sub("", bare).strip()
    for candidate in (text.strip(), bare, counted):
        ids = index.candidates(candidate) or index.by_tokens(tokens(candidate))
        if ids:
            return ids[0] if len(ids) == 1 else None
    return None


# -- models ---------------------------------------------------------------------------------------------------------

_QUANTISATION = re.compile(
    r"(?:i?q\d(?:\.\d)?(?:[_-]?(?:k|0|1|s|m|l|xl|xs|xxs|nl))*|tq\d|[fb]f?\d{1,2}|fp\d{1,2}|int\d|mxfp\d|nvfp\d|w\d+a\d+(?:g\d+)?"
    r"|e4m3|e5m2|g?gguf|ggml|awq|gptq|exl\d|mlx|bnb|nf4|hqq|aqlm|autoround|marlin|\d{1,2}bits?|imatrix|ud|quantized|dynamic|block)"
)
_QUANT_SIZE = frozenset({"k", "s", "m", "l", "xl", "xs", "xxs", "nl", "0", "1", "small", "medium", "large"})
_VARIANT = frozenset({"instruct", "chat", "it", "base", "hf", "pt", "text", "moe"})
_DATE = re.compile(r"(?:2[3-9])?(?:0[1-9]|1[0-2])(?:[0-3]\d)?")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


def guess_model_name(
    index: NameIndex, models: Mapping[str, ModelSpec], hint: str, parameter_count: float | None = None
) -> Guess | None:
    """The one model that a text means, tried as a name, without its quantisation and variant words, and by its size."""
    text = hint.strip()
    if not text or len(text) > 2000:
        return None
    for name in _names_in(text):
        ids = index.candidates(name)
        if len(ids) == 1:
            return _sized(Guess(ids[0], f"the file calls the model {text!r}"), models, parameter_count)
        if len(ids) > 1:
            return None
    for name in _names_in(text):
        for wanted in _peeled(name):
            ids = index.by_tokens(wanted)
            if len(ids) == 1:
                why = f"{text!r} without its quantisation and variant words is {' '.join(wanted)!r}"
                return _sized(Guess(ids[0], why), models, parameter_count)
            if len(ids) > 1:
                return None
    return None if parameter_count is None else _by_size(models, text, parameter_count)


def _names_in(text: str) -> list[str]:
    """The whole text, a cached repository's name, and the last parts of a path."""
    cleaned = re.sub(r"\.(gguf|safetensors|bin|pt|pth|json|nemo)$", "", text.rstrip("/\\"), flags=re.IGNORECASE)
    cleaned = _SHARD.sub("", cleaned)
    found = [text, cleaned]
    cached = re.search(r"models--([^/\\]+?)--([^/\\]+)", cleaned)
    if cached:
        return [*found, f"{cached[1]}/{cached[2]}", cached[2]]
    parts = [part for part in re.split(r"[/\\]", cleaned) if part]
    if len(parts) > 1:
        found += ["/".join(parts[-2:]), parts[-1]]
    return list(dict.fromkeys(found))


def _peeled(name: str) -> list[tuple[str, ...]]:
    """The words of a name without quantisation words, then also without variants, then also without dates."""
    words = tokens(name)
    plain: list[str] = []
    after_quantisation = False
    for word in words:
        if _QUANTISATION.fullmatch(word):
            after_quantisation = True
        elif not (after_quantisation and word in _QUANT_SIZE):
            after_quantisation = False
            plain.append(word)
    if plain[:1] == ["meta"] and plain[1:2] and plain[1].startswith("llama"):
        plain = plain[1:]
    general = [word for word in plain if word not in _VARIANT]
    undated = [word for word in general if not (len(word) == 4 and _DATE.fullmatch(word))]
    made = [tuple(words_) for words_ in (plain, general, undated) if words_ and tuple(words_) != ()]
    return list(dict.fromkeys(made))


def _sized(guess: Guess, models: Mapping[str, ModelSpec], parameter_count: float | None) -> Guess | None:
    """Drop a guess whose size is far from what the file says: then the name means something else."""
    if parameter_count is None:
        return guess
    counts = _counts(models[guess.id])
    return guess if any(abs(c - parameter_count) <= 0.05 * c for c in counts) else None


def _counts(model: ModelSpec) -> tuple[float, ...]:
    """Totals that a file may state: with and without the vision tower, and with the tied head stored twice."""
    try:
        count = count_parameters(model)
    except UnsupportedArchitecture:
        return ()
    return tuple({float(count.total), float(count.total - count.tower), float(count.total + count.embedding)})


def _by_size(models: Mapping[str, ModelSpec], text: str, parameter_count: float) -> Guess | None:
    """The one model of the named family with this very number of parameters.

    Files with rope frequencies or sinks stored as tensors differ by a few hundred; families repeat exact sizes
    (Llama 3 and 3.1), and then there is no guess.
    """
    words = tokens(text)
    if not words:
        return None
    family = re.match(r"[a-z]+", words[0])
    if family is None:
        return None
    found = [
        model
        for model in models.values()
        if normal(model.family or model.id).startswith(family[0]) or model.hf_model_type == family[0]
        if any(abs(c - parameter_count) <= 1e-6 * c for c in _counts(model))
    ]
    if len(found) != 1:
        return None
    return Guess(
        found[0].id,
        f"{found[0].name} is the only known {family[0]} model with {parameter_count:.0f} parameters",
        certain=False,
    )
