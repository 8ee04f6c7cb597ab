"""What a run comes to: its steps against their bounds, the gap in named terms, and what is lacking for that.

The one place from which other use cases (diagnosis, triage, lists) take a run's result, so that none computes it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.domain.gap import GapPart
from app.domain.run_analysis import BoundRow, MeasuredAgainstBound
from app.services.context import Context
from app.services.runs import RunView, gap_json, get_view


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """`sentence` is the main step's result, `also` one sentence for each other step or lack.

    `main` is the main step against its bound (None where nothing can be held against one), `gap` its terms, whose times
    add up to measured less bound; `needs` names the fields that a person would have to state. `view` is the whole run:
    its links, findings, and what the file and people say.
    """

    view: RunView
    analysis: MeasuredAgainstBound

    @property
    def sentence(self) -> str:
        return self.analysis.verdict

    @property
    def also(self) -> tuple[str, ...]:
        return self.analysis.also

    @property
    def main(self) -> BoundRow | None:
        return self.analysis.main

    @property
    def gap(self) -> tuple[GapPart, ...]:
        return () if self.main is None else self.main.gap_terms

    @property
    def needs(self) -> tuple[str, ...]:
        return self.analysis.needs


def verdict_of(ctx: Context, run_id: str) -> RunVerdict:
    """The verdict on a stored run. Raises NotFound."""
    view = get_view(ctx, run_id)
    return RunVerdict(view, view.analysis)


def verdict_json(verdict: RunVerdict) -> dict[str, Any]:
    """The verdict as the API shows it of a run."""
    return {
        "verdict": verdict.sentence,
        "also": list(verdict.also),
        "gap": [] if verdict.main is None else gap_json(verdict.main),
        "needs": list(verdict.needs),
    }
