"""What a rule of the benchmark lint looks at, in words: a check of runs, a fact that a record should have, a field that
compared runs must share."""

from __future__ import annotations

from app.domain.comparison_items import FROZEN_FIELDS
from app.domain.lint import ANALYSIS_CHECKS, CHECKS
from app.domain.lint_facts import FACTS


def rule_words(rule: str) -> tuple[str, ...]:
    """Sentences about what is done for a rule (`BL-06`, `BC-03`); empty where nothing is."""
    words = [f"{check.title}." for check in CHECKS if check.rule == rule]
    words += [f"{title}." for _, number, _, title in ANALYSIS_CHECKS if number == rule]
    facts = tuple(dict.fromkeys(fact.label for fact in FACTS if fact.rule == rule))
    if facts:
        words.append(f"A record is asked for {_listed(facts)}.")
    fields = tuple(field.label for field in FROZEN_FIELDS if field.rule == rule)
    if fields:
        words.append(f"Compared runs are held against each other in {_listed(fields)}.")
    return tuple(words)


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
