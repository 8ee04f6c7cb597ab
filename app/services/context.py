"""What every use case works with."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.catalog.loader import Catalog
from app.services.jobs import Jobs
from app.settings import Settings
from app.storage.store import Storage


@dataclass(frozen=True, slots=True)
class Context:
    """The settings, the shipped facts and the team's own data of one running product."""

    settings: Settings
    catalog: Catalog
    storage: Storage
    jobs: Jobs = field(default_factory=Jobs)
