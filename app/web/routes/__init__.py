"""One module for each family of addresses. A module has a `router`; listing it here puts it into the app."""

from __future__ import annotations

from fastapi import APIRouter

from app.web.routes.api_catalog import router as api_catalog
from app.web.routes.api_docs import router as api_docs
from app.web.routes.api_estimates import router as api_estimates
from app.web.routes.service import router as service

ROUTERS: tuple[APIRouter, ...] = (
    service,
    api_docs,
    api_estimates,
    api_catalog,
)
"""Every router of the product. A new family is one import and one line."""
