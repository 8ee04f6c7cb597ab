"""The importers of training logs, more specific formats first."""

from __future__ import annotations

from app.importers.base import Importer
from app.importers.hf_trainer_log import HfTrainerLog
from app.importers.hf_trainer_state import HfTrainerState
from app.importers.maxtext_log import MaxtextLog
from app.importers.megatron_golden_values import MegatronGoldenValues
from app.importers.megatron_log import MegatronLog
from app.importers.mlperf_mllog import MlperfMllog
from app.importers.torchtitan_log import TorchtitanLog

TRAINING: tuple[Importer, ...] = (
    HfTrainerState(),
    MlperfMllog(),
    MegatronGoldenValues(),
    MegatronLog(),
    TorchtitanLog(),
    MaxtextLog(),
    HfTrainerLog(),
)
