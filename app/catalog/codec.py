"""Hardware profiles and models to and from JSON: the shape of the shipped files, of the API and of stored profiles."""

from app.catalog.hardware_codec import (
    PEAK_PRECISIONS,
    hardware_figures,
    hardware_from_json,
    hardware_to_json,
    mark_entered,
)
from app.catalog.model_codec import ParsedModel, model_from_json, model_to_json

__all__ = [
    "PEAK_PRECISIONS",
    "ParsedModel",
    "hardware_figures",
    "hardware_from_json",
    "hardware_to_json",
    "mark_entered",
    "model_from_json",
    "model_to_json",
]
