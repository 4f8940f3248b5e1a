"""Cleans text before it is tokenized: characters, sentences, filters of documents, and files of what was left out."""

from pipeline.cleaning.characters import has_words, normalize_line, normalize_text
from pipeline.cleaning.filters import DocumentFilter, beginning, excerpt
from pipeline.cleaning.languages import scripts_of
from pipeline.cleaning.rejects import REJECTS_NAME, RejectWriter, write_rejects
from pipeline.cleaning.sentences import split_sentences
