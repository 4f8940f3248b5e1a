"""The settings of a build: where text comes from, how it becomes pairs, and on which engine."""

from pipeline.config.engines import FLAGS, KEYS, RayConfig
from pipeline.config.schema import (
    DICTIONARY_LANGUAGES,
    CleaningConfig,
    DownloadConfig,
    NearDuplicatesConfig,
    NextSentence,
    PipelineConfig,
    SourceConfig,
    VocabularyConfig,
    is_web_address,
)
