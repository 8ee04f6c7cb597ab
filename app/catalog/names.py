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

    def __init__(
        self, what: str, names: Mapping[str, Iterable[str]], further: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """`further` are words that a name of an id may hold besides those of its names, in any order: with it a name is
        also found by words (`by_bag`)."""
        self.what = what
        self._bags = {} if further is None else {id_: _bag((id_, *names[id_]), further.get(id_, ())) for id_ in names}
        self.ids = tuple(names)
        self._ids = {normal(id_): id_ for id_ in names}
        self._names: dict[str, tuple[str, ...]] = {}
        self._spelled: dict[str, str] = {normal(id_): id_ for id_ in names}
        self._words: dict[str, set[str]] = {}
        for id_, others in names.items():
            for name in (id_, *others):
                key = normal(name)
                self._spelled.setdefault(key, name)
                known = self._names.get(key, ())
                if id_ not in known:
                    self._names[key] = (*known, id_)
                self._words.setdefault("".join(words(name)), set()).add(id_)

    def candidates(self, name: str) -> tuple[str, ...]:
        """The ids with this name: an id is always its own, an alias may be shared."""
        key = normal(name)
        if key in self._ids:
            return (self._ids[key],)
        found = self._names.get(key, ())
        if not found:
            bare = _VENDOR.sub("", name.strip())
            found = self._names.get(normal(bare), ()) if bare != name.strip() else ()
        return found or self.by_bag(name)

    def by_bag(self, name: str) -> tuple[str, ...]:
        """The ids that every word of a name may stand for, in whatever order (`H100-80GB-SXM`, `A100 40GB PCIe`).

        A number of cores that tells all devices of a name apart must be said, and a lone word names nothing.
        """
        wanted = set(words(name[:200]))
        if len(wanted) < 2 or not any(_CHIP.fullmatch(word) for word in wanted):
            return ()
        return tuple(id_ for id_, (known, needed) in self._bags.items() if needed <= wanted <= known)

    def resolve(self, name: str) -> str:
        """The one id with this name. Raises AmbiguousName or UnknownName."""
        found = self.candidates(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise AmbiguousName(self.what, name, found)
        key = normal(name[:200])
        near = [known for known in self._spelled if len(key) > 2 and known.startswith(key)][:5]
        near = near or difflib.get_close_matches(key, list(self._spelled), n=3, cutoff=0.6)
        raise UnknownName(self.what, name, tuple(dict.fromkeys(self._spelled[key] for key in near)))

    def by_words(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The ids with a name of exactly these words, however they are joined ("llama3.1" and "llama 3.1")."""
        return tuple(sorted(self._words.get("".join(wanted), ())))


def normal(name: str) -> str:
    """A name without case, spaces, dashes and underscores."""
    return re.sub(r"[\s_\-]+", "", name.casefold())


def words(name: str) -> tuple[str, ...]:
    """The words of a name in order, lower case; dots inside version numbers stay."""
    return tuple(re.findall(r"[a-z0-9]+(?:\.[0-9]+)*\+?", name.casefold().replace("(r)", " ").replace("(tm)", " ")))


_CHIP = re.compile(r"(?=[a-z]*\d)(?!\d+(?:gb|gib)?$)[a-z\d.]{2,}|\d{4}")
"""A word that may name a chip: letters with digits, or the four digits of a graphics card; no size of a memory."""


def _bag(names: Iterable[str], further: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """All words of an id's names, and those that a name must hold: the cores where each of them counts these."""
    known = [frozenset(words(name)) for name in names]
    counted = all("core" in one for one in known[1:]) and len(known) > 1
    return frozenset().union(*known, further), frozenset({"core"} if counted else ())


_VENDOR = re.compile(r"^(?:nvidia|amd|intel(?:\(r\))?|google|aws|apple|habana)\s+", re.IGNORECASE)

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
        ids = index.candidates(candidate) or index.by_words(words(candidate))
        if ids:
            return ids[0] if len(ids) == 1 else None
    return None


# -- models ---------------------------------------------------------------------------------------------------------

_QUANTISATION = re.compile(
    r"i?q\d|tq\d|bf16|fp?(?:4|6|8|16|32)|int\d|mxfp\d|nvfp\d|w\d+a\d+(?:g\d+)?|e4m3|e5m2|gguf|ggml|awq|gptq|exl\d"
    r"|mlx|bnb|nf4|hqq|aqlm|autoround|marlin|\d{1,2}bits?|imatrix|ud|quantized|dynamic|block"
)
_AFTER_QUANTISATION = frozenset(
    ("k", "s", "m", "l", "xl", "xs", "xxs", "nl", "0", "1", "small", "medium", "large", "moe", "kv")
)
_VARIANT = frozenset(("instruct", "chat", "it", "base", "hf"))
_DATE = re.compile(r"(?:2[3-9](?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])[0-3]\d)")
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_EXTENSION = re.compile(r"\.(?:gguf|safetensors|bin|pth?|json|nemo)$", re.IGNORECASE)

_LLAMA_CPP = re.compile(
    r"(?P<arch>[\w.\-]+) (?P<size>[\d.]+x?[\d.]*[BMKT](?:\.A[\d.]+[BM])?|\?B|small|medium|large|XL)"
    r" (?P<format>(?:all |mostly )?(?:I?Q\d|TQ\d|B?F\d\d|MXFP\d|NVFP\d).*)",
    re.IGNORECASE,
)
"""llama.cpp describes a file by architecture, size and format. One architecture name serves many models (`llama 7B` is
LLaMA, Llama 2 or Mistral; `qwen2` is Qwen2 or Qwen2.5), so such a text alone names a model only by its exact size."""

_ARCHITECTURE_TYPES = {"llama": ("llama", "mistral", "mixtral")}
_ONE_MODEL_ARCHITECTURES = frozenset({"gptoss"})


def guess_model_name(
    index: NameIndex, models: Mapping[str, ModelSpec], hint: str, parameter_count: float | None = None
) -> Guess | None:
    """The one model that a text means: by name, without quantisation and variant words, or by architecture and size."""
    text = hint.strip()
    if not text or len(text) > 2000:
        return None
    described = _LLAMA_CPP.fullmatch(text)
    if described is not None and normal(described["arch"]) not in _ONE_MODEL_ARCHITECTURES:
        return _by_size(models, described["arch"], parameter_count)
    names = _names_in(text)
    for name in names:
        ids = index.candidates(name)
        if ids:
            guess = Guess(ids[0], f"the file calls the model {text!r}") if len(ids) == 1 else None
            return _of_size(guess, models, parameter_count)
    for name in names:
        for wanted in _peeled(name):
            ids = index.by_words(wanted)
            if ids:
                why = f"{text!r} without its quantisation and variant words is {' '.join(wanted)!r}"
                guess = Guess(ids[0], why) if len(ids) == 1 else None
                return _of_size(guess, models, parameter_count)
    return None


def _names_in(text: str) -> list[str]:
    """The whole text, the repository of a download cache, and the last parts of a path."""
    cleaned = _SHARD.sub("", _EXTENSION.sub("", text.rstrip("/\\")))
    cached = re.search(r"models--([^/\\]+?)--([^/\\]+)", cleaned)
    if cached:
        return [f"{cached[1]}/{cached[2]}", cached[2]]
    found = [text, cleaned]
    parts = [part for part in re.split(r"[/\\]", cleaned) if part]
    if len(parts) > 1:
        found += ["/".join(parts[-2:]), parts[-1]]
    return list(dict.fromkeys(found))


def _peeled(name: str) -> list[tuple[str, ...]]:
    """The words of a name without quantisation words; then also without variants; then also without a date."""
    plain: list[str] = []
    after_quantisation = False
    for word in words(name):
        if _QUANTISATION.fullmatch(word):
            after_quantisation = True
        elif not (after_quantisation and word in _AFTER_QUANTISATION):
            after_quantisation = False
            plain.append(word)
    if len(plain) > 1 and plain[0] == "meta" and plain[1].startswith("llama"):
        plain = plain[1:]
    general = [word for word in plain if word not in _VARIANT]
    undated = [word for word in general if not _DATE.fullmatch(word)]
    return list(dict.fromkeys(tuple(some) for some in (plain, general, undated) if some))


def _of_size(guess: Guess | None, models: Mapping[str, ModelSpec], parameter_count: float | None) -> Guess | None:
    """Drop a guess whose size is far from what the file says: then the name means something else."""
    if guess is None or parameter_count is None:
        return guess
    return guess if any(abs(c - parameter_count) <= 0.05 * c for c in _counts(models[guess.id])) else None


def _counts(model: ModelSpec) -> tuple[float, ...]:
    """Totals that a file may state: with and without the vision tower, and with a tied head stored twice."""
    try:
        count = count_parameters(model)
    except UnsupportedArchitecture:
        return ()
    return (float(count.total), float(count.total - count.tower), float(count.total + count.embedding))


def _by_size(models: Mapping[str, ModelSpec], architecture: str, parameter_count: float | None) -> Guess | None:
    """The one model of an architecture with this very number of parameters, where there is just one.

    Files that store rope frequencies as a tensor have a few dozen more. Equal shapes (Llama 3 and 3.1) are not guessed.
    """
    if parameter_count is None:
        return None
    arch = normal(architecture)
    types = _ARCHITECTURE_TYPES.get(arch, (arch,))
    found = [
        model
        for model in models.values()
        if any(normal(model.hf_model_type or "").removesuffix("text") == type_ for type_ in types)
        and any(abs(c - parameter_count) <= 1e-7 * c for c in _counts(model))
    ]
    if len(found) != 1:
        return None
    why = f"of the {architecture} models here only {found[0].name} has {parameter_count:.0f} parameters"
    return Guess(found[0].id, why, certain=False)
