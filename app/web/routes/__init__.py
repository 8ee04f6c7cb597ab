"""One module for each family of addresses. A module has a `router`; listing it here puts it into the app."""

from __future__ import annotations

from fastapi import APIRouter

from app.web.routes.api_catalog import router as api_catalog_router
from app.web.routes.api_communication import router as api_communication_router
from app.web.routes.api_comparisons import router as api_comparisons_router
from app.web.routes.api_diagnoses import router as api_diagnoses_router
from app.web.routes.api_docs import router as api_docs_router
from app.web.routes.api_estimates import router as api_estimates_router
from app.web.routes.api_jobs import router as api_jobs_router
from app.web.routes.api_kernels import router as api_kernels_router
from app.web.routes.api_library import router as api_library_router
from app.web.routes.api_mappings import router as api_mappings_router
from app.web.routes.api_moe import router as api_moe_router
from app.web.routes.api_runs import router as api_runs_router
from app.web.routes.api_techniques import router as api_techniques_router
from app.web.routes.ceilings import router as ceilings_router
from app.web.routes.comm import router as comm_router
from app.web.routes.comparisons import router as comparisons_router
from app.web.routes.diagnose import router as diagnose_router
from app.web.routes.explore import router as explore_router
from app.web.routes.fidelity import router as fidelity_router
from app.web.routes.formats import router as formats_router
from app.web.routes.hardware import router as hardware_router
from app.web.routes.home import router as home_router
from app.web.routes.jobs import router as jobs_router
from app.web.routes.kv import router as kv_router
from app.web.routes.library import router as library_router
from app.web.routes.library_reference import router as library_reference_router
from app.web.routes.memory import router as memory_router
from app.web.routes.model_import import router as model_import_router
from app.web.routes.models import router as models_router
from app.web.routes.moe import router as moe_router
from app.web.routes.run_edit import router as run_edit_router
from app.web.routes.run_history import router as run_history_router
from app.web.routes.run_kernels import router as run_kernels_router
from app.web.routes.run_lint import router as run_lint_router
from app.web.routes.run_page import router as run_page_router
from app.web.routes.runs import router as runs_router
from app.web.routes.search import router as search_router
from app.web.routes.service import router as service_router
from app.web.routes.shares import router as shares_router
from app.web.routes.tables import router as tables_router

ROUTERS: tuple[APIRouter, ...] = (
    home_router,
    explore_router,
    comm_router,
    kv_router,
    memory_router,
    moe_router,
    run_history_router,  # before run_page_router: /runs/series is no run's id
    run_lint_router,  # before run_page_router: /runs/links is no run's id
    ceilings_router,
    runs_router,
    run_page_router,
    run_edit_router,
    diagnose_router,
    run_kernels_router,
    jobs_router,
    formats_router,
    tables_router,
    hardware_router,
    model_import_router,  # before models_router: /models/new is no model's id
    models_router,
    fidelity_router,
    library_router,
    library_reference_router,  # behind the others: /library/{section} could be any of them
    search_router,
    service_router,
    api_docs_router,
    api_estimates_router,
    api_communication_router,
    api_moe_router,
    api_catalog_router,
    api_techniques_router,
    api_library_router,
    api_runs_router,
    api_kernels_router,
    api_jobs_router,
    api_mappings_router,
    comparisons_router,
    shares_router,
    api_comparisons_router,
    api_diagnoses_router,
)
"""Every router of the product. A new family is one import and one line."""
