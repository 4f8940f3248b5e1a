"""Measures each stage of a build on one core: the build's own functions run in this process, on a corpus in memory.

Each function runs several times, and the fewest CPU seconds count. If a library does the same work, the library runs
after each run of our function.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mwparserfromhell

from bench.processes import peak_bytes, reset_peak
from bench.repeats import Texts, write_corpus
from pipeline.build import build_shard
from pipeline.cleaning import split_sentences
from pipeline.config import PipelineConfig
from pipeline.dataset import id_type
from pipeline.documents import Document
from pipeline.draws import generator
from pipeline.instances.masking import make_masks
from pipeline.instances.pairs import make_pairs
from pipeline.instances.rows import assemble_rows
from pipeline.shuffle import Buckets, Extent, SpillWriter
from pipeline.sources.assembly import assemble
from pipeline.sources.bytestreams import read_pieces
from pipeline.sources.decoding import decode_text
from pipeline.sources.dumpxml import DumpReader
from pipeline.sources.gutenberg import book_paragraphs
from pipeline.tokenizer import TokenizedDocument, WordTokenizer
from pipeline.wikitext import DEFAULT_BUDGET, wiki_names, wikitext_to_text

MASK_SETS = 10
_MOST_CHARACTERS = DEFAULT_BUDGET.num_bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """The measurement of one stage on one core.

    The stage took `cpu_s` CPU seconds for `megabytes` MB of `unit` (for example "markup"). It produced `tokens` tokens
    (0: the stage produces no tokens).
    """

    name: str
    cpu_s: float
    megabytes: float
    unit: str
    tokens: int
    peak_bytes: int
    """The highest memory of this process, which holds the whole corpus."""
    beside: str = ""
    """The library that did the same work, or "" if none did."""
    beside_cpu_s: float = 0.0


def measure_stages(texts: Texts, *, config: PipelineConfig, tokenizer: WordTokenizer, repeat: int) -> list[Stage]:
    """Measure every stage of a build of the corpus `texts`. Return the stages in the order of the build."""
    stages: list[Stage] = []
    names = wiki_names([texts.language])
    markup = [text for _, text in texts.articles]
    plain: list[str] = []
    if markup:
        xml = _dump_of(texts)
        size = sum(map(len, xml)) / 1e6
        made = time_turns(lambda: list(DumpReader("bench", most_characters=_MOST_CHARACTERS).read(xml)), repeat=repeat)
        stages.append(made.stage("dump to pages", size, "XML"))
        size = sum(len(text.encode()) for text in markup) / 1e6
        made = time_turns(
            lambda: [wikitext_to_text(text, names=names, language=texts.language).text for text in markup],
            lambda: [mwparserfromhell.parse(text).strip_code() for text in markup],
            repeat=repeat,
        )
        plain += made.result
        stages.append(made.stage("wikitext to text", size, "markup", beside="mwparserfromhell"))
    if texts.books:
        size = sum(len(data) for _, data in texts.books) / 1e6
        made = time_turns(lambda: [read_book(name, data) for name, data in texts.books], repeat=repeat)
        plain += made.result
        stages.append(made.stage("book files to paragraphs", size, "books"))
    text_mb = sum(len(text.encode()) for text in plain) / 1e6
    made = time_turns(lambda: [split_text(text, language=texts.language) for text in plain], repeat=repeat)
    documents = [document for document in made.result if document is not None]
    stages.append(made.stage("sentences", text_mb, "text"))
    made, tokens = measure_tokens(documents, config=config, tokenizer=tokenizer, repeat=repeat)
    tokenized: list[TokenizedDocument] = made.result
    stages.append(
        made.stage("text to token ids", text_mb, "text", tokens=tokens, beside="tokenizers, a call a sentence")
    )
    return stages + measure_shards(tokenized, text_mb=text_mb, config=config, tokenizer=tokenizer, repeat=repeat)


def measure_tokens(
    documents: Sequence[Document], *, config: PipelineConfig, tokenizer: WordTokenizer, repeat: int
) -> tuple[Turns, int]:
    """Measure turning text into token ids, with our tokenizer and with `tokenizers`, which is called once per sentence.

    Each run of our tokenizer begins with empty caches. Returns (the times, how many tokens there are). The result in
    the times is a list of TokenizedDocument.
    """
    path = config.vocabulary.path
    assert path is not None
    made = time_turns(
        lambda: tokenize_all(documents, WordTokenizer.from_path(path, lowercase=config.vocabulary.lowercase)),
        lambda: encode_all(documents, tokenizer.backend),
        repeat=repeat,
    )
    return made, sum(document.ids.size for document in made.result)


def tokenize_all(documents: Sequence[Document], tokenizer: WordTokenizer) -> list[TokenizedDocument]:
    """Tokenize the documents as a worker does: one after another, with one tokenizer."""
    return [tokenizer.tokenize(document) for document in documents]


def encode_all(documents: Sequence[Document], backend: Any) -> int:
    """Encode all sentences with the library's tokenizer `backend` alone, and return how many tokens they have."""
    encode = backend.encode
    return sum(
        len(encode(sentence, add_special_tokens=False).ids) for document in documents for sentence in document.sentences
    )


def _dump_of(texts: Texts) -> list[bytes]:
    """Return the articles as the XML of a dump, in pieces as our file reader gives them."""
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as folder:
        (source,) = write_corpus(replace(texts, books=()), Path(folder))
        return [piece for path in source.paths for piece in read_pieces(path)]


def read_book(name: str, data: bytes) -> str:
    """Return the text of a book file, one paragraph per line."""
    return "\n".join(book_paragraphs(decode_text(data, name=name).text))


def split_text(text: str, *, language: str) -> Document | None:
    """Return a text as a Document, split into sentences, or None if no part of the text has words."""
    items = assemble("bench", split_sentences(text, language=language, keep_reserved=True))
    return next((item for item in items if isinstance(item, Document)), None)


def measure_shards(
    documents: Sequence[TokenizedDocument],
    *,
    text_mb: float,
    config: PipelineConfig,
    tokenizer: WordTokenizer,
    repeat: int,
) -> list[Stage]:
    """Measure the stages after tokenization: spilling to disk, pairs, rows, masks, and whole shards.

    Whole shards are measured with one mask set (choice of masked tokens) per row and with MASK_SETS. Except for
    spilling, the tokens that are counted are those of the rows.
    """
    documents = list({document.id: document for document in documents}.values())
    with tempfile.TemporaryDirectory(prefix="cloze-bench-") as name:
        folder = Path(name)
        spilled = time_turns(lambda: spill(documents, folder=folder, tokenizer=tokenizer), repeat=repeat)
        extents: list[Extent] = spilled.result
        tokens = sum(document.ids.size for document in documents)
        stages = [spilled.stage("spill to disk", text_mb, "text", tokens=tokens)]

        paired = time_turns(lambda: make_pairs(documents, config=config, pass_number=0), repeat=repeat)
        order = generator(config.seed, "bench").permutation(len(paired.result))
        shuffled = paired.result.take(order)
        made = time_turns(
            lambda: assemble_rows(documents, shuffled, special=tokenizer.special, seed=config.seed), repeat=repeat
        )
        rows = made.result
        in_rows = int(rows.ids.size)
        stages.append(paired.stage("pairs", text_mb, "text", tokens=in_rows))
        stages.append(made.stage("rows", text_mb, "text", tokens=in_rows))
        first = time_turns(
            lambda: make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=range(1)), repeat=repeat
        )
        stages.append(first.stage("masks, one set", text_mb, "text", tokens=in_rows))
        for count in (1, MASK_SETS):
            several = config.model_copy(update={"masks_per_pair": count})
            build = partial(build_one, extents, config=several, folder=folder, tokenizer=tokenizer)
            built = time_turns(build, repeat=repeat)
            title = f"pairs, masks, shard: {count} mask set{'s' if count > 1 else ''}"
            stages.append(built.stage(title, text_mb, "text", tokens=in_rows))
    return stages


def spill(documents: Sequence[TokenizedDocument], *, folder: Path, tokenizer: WordTokenizer) -> list[Extent]:
    """Write the documents to a spill file as one bucket (group of documents). Return where they are in the file."""
    buckets = Buckets(1, 0, 0.0)
    with SpillWriter(
        folder, name="bench", bucket_of=buckets.bucket_of, id_type=id_type(tokenizer.vocab_size)
    ) as writer:
        for document in documents:
            writer.add(document)
    return [extent for _, extent in writer.extents]


def build_one(extents: Sequence[Extent], *, config: PipelineConfig, folder: Path, tokenizer: WordTokenizer) -> Any:
    """Build one shard of all documents in `extents` (places in spill files) and verify it, as a worker does."""
    return build_shard(
        extents, config=config, tokenizer=tokenizer, split="train", name="shard", folder=folder, scratch=folder
    )


@dataclass(frozen=True, slots=True)
class Turns:
    """The fewest CPU seconds of a function and of the library that does the same work.

    `result` is what the function returned. `beside_cpu_s` belongs to the library (0: there is none). `peak_bytes` is
    the highest memory of this process.
    """

    result: Any
    cpu_s: float
    beside_cpu_s: float
    peak_bytes: int

    def stage(self, name: str, megabytes: float, unit: str, *, tokens: int = 0, beside: str = "") -> Stage:
        """Return the Stage with these times, for `megabytes` MB of `unit`. `beside` names the library."""
        return Stage(name, self.cpu_s, megabytes, unit, tokens, self.peak_bytes, beside, self.beside_cpu_s)


def time_turns(ours: Callable[[], Any], other: Callable[[], Any] | None = None, *, repeat: int) -> Turns:
    """Run `ours` and then `other`, `repeat` times, and keep the fewest CPU seconds of each."""
    best = Turns(None, float("inf"), float("inf") if other else 0.0, 0)
    for _ in range(repeat):
        reset_peak()
        began = time.process_time()
        result = ours()
        best = replace(
            best,
            result=result,
            cpu_s=min(best.cpu_s, time.process_time() - began),
            peak_bytes=max(best.peak_bytes, peak_bytes()),
        )
        if other is not None:
            began = time.process_time()
            other()
            best = replace(best, beside_cpu_s=min(best.beside_cpu_s, time.process_time() - began))
    return best
