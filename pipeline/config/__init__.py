"""The settings of a build: where text comes from, how it becomes pairs, and on which engine."""

from pipeline.config.cleaning import CleaningConfig, NearDuplicatesConfig
from pipeline.config.dictionaries import DICTIONARY_LANGUAGES
from pipeline.config.engines import FLAGS, KEYS, RayConfig
from pipeline.config.schema import (
    DownloadConfig,
    NextSentence,
    PipelineConfig,
    SourceConfig,
    VocabularyConfig,
    is_web_address,
)
from pipeline.config.wikitext import Treatment, WikitextConfig
