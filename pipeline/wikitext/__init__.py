"""Wikitext to plain text in one linear scan: paragraphs of prose, nothing of the markup left."""

from pipeline.wikitext.names import WikiNames, language_codes, wiki_names
from pipeline.wikitext.scanner import DEFAULT_BUDGET, PageOverBudgetError, wikitext_to_text
