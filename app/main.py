"""The app: every room put together. The only place that knows them all."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

from app import __version__
from app.catalog.loader import load_catalog
from app.services.context import Context
from app.services.jobs import Jobs
from app.settings import Settings, load_settings
from app.storage import migrate, uploads
from app.storage.store import open_storage
from app.web import errors, openapi, rendering, security
from app.web.routes import ROUTERS
from app.web.static_files import VersionedFiles

log = logging.getLogger("bytebound")


def create_app(settings: Settings | None = None, *, clock: Callable[[], float] = time.monotonic) -> FastAPI:
    """The app on the settings' data folder (from the environment by default).

    Tables are made by `bytebound serve` or `bytebound migrate`; without them the app starts and /readyz says so.
    `clock` is what rate limits count by. Raises SettingsError, StorageError or CatalogError where it cannot start.
    """
    settings = load_settings() if settings is None else settings
    catalog = load_catalog()
    storage = open_storage(settings)
    context = Context(settings=settings, catalog=catalog, storage=storage, jobs=Jobs(settings.readers))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        reason = migrate.readiness(storage.engine)
        if reason is not None:
            log.warning("not ready: %s", reason)
        else:
            left = uploads.recover(storage.engine, storage.blobs, storage.spool)
            if left:
                log.warning("removed what %d earlier process(es) left of uploads that they did not finish", left)
        yield
        context.jobs.close()
        storage.close()

    app = FastAPI(
        title="Bytebound",
        version=__version__,
        summary="Performance bounds and measurements for machine-learning workloads.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        default_response_class=errors.FiniteJSONResponse,
        lifespan=lifespan,
    )
    app.state.context = context
    errors.register(app)
    for router in ROUTERS:
        app.include_router(router)
    openapi.install(app)
    app.mount(rendering.STATIC_URL, VersionedFiles(directory=rendering.STATIC), name="static")
    # Level 2: an answer of the lab is a fifth larger than at 5, and packed in less than half the time.
    # An uploaded file goes back as it came, with its length and in ranges: it may be large, and is often packed.
    app.add_middleware(
        GZipMiddleware,
        minimum_size=1000,
        compresslevel=2,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream"),
    )
    security.protect(app, settings, clock)
    return app
