"""Compares a model that was read from a config.json with the catalogue's entry of the same architecture."""

from __future__ import annotations

from dataclasses import fields

from app.domain.model import ModelSpec

NOT_IN_A_CONFIG = frozenset(
    {
        "id", "name", "family", "release_year", "hf_id", "hf_model_type", "aliases", "shipped", "record",
        "recorded_total_params", "recorded_active_params", "published_total_params", "published_active_params",
        "layers",  # compared on their own, so that a failure shows them
        "activation",  # the catalogue has the usual word for it, files that of their own code
    }
)  # fmt: skip


def differences(read: ModelSpec, shipped: ModelSpec) -> set[str]:
    """Names of the fields, besides the layers, in which two models differ as architectures."""
    names = {field.name for field in fields(ModelSpec)} - NOT_IN_A_CONFIG
    return {name for name in names if getattr(read, name) != getattr(shipped, name)}
