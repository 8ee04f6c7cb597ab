"""What a calculator refuses, by kind. Answers the user may not like (does not fit) are results, not errors."""

from __future__ import annotations

from collections.abc import Sequence


class DomainError(Exception):
    """Base of everything the calculators raise on purpose."""


class InvalidInput(DomainError):
    """An impossible value. `loc` is the path of the field in the request, as the API names it."""

    def __init__(self, loc: str | Sequence[str | int], reason: str) -> None:
        self.loc: tuple[str | int, ...] = (loc,) if isinstance(loc, str) else tuple(loc)
        self.reason = reason
        super().__init__(f"{'.'.join(str(part) for part in self.loc)}: {reason}")


class MissingFigure(DomainError):
    """The profile has no such figure; it is never guessed from another one."""

    def __init__(self, profile: str, figure: str, hint: str = "") -> None:
        self.profile = profile
        self.figure = figure
        self.hint = hint
        super().__init__(f"{profile} has no figure for {figure}" + (f": {hint}" if hint else ""))


class UnsupportedArchitecture(DomainError):
    """The model's layers cannot be turned into a cost table; the reason names what is missing."""

    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"{model}: {reason}")
