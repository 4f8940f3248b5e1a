"""Makes the same instances as BERT's published script, draw for draw (google-research/bert,
create_pretraining_data.py).

An instance is a masked pair. All draws come from one random.Random, in the published order. First the documents are
shuffled. Then, for each pass and document, the pairs are made, and each pair is masked before the next is made. At last
all instances are shuffled. `python -m pipeline.instances.reference` prints the instances of text files.
"""

from __future__ import annotations

import argparse
import json
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline import draws
from pipeline.config import PipelineConfig
from pipeline.console import command, exit_with
from pipeline.documents import Document
from pipeline.instances.masking import Masks
from pipeline.instances.pairs import REFERENCE, PairTable, pair_document
from pipeline.instances.segments import Corpus, Pair, Segment, whole_units
from pipeline.tokenizer import PIECE_PREFIX, Ids, TokenizedDocument, WordTokenizer

_MASKED_SHARE, _KEPT_SHARE = 0.8, 0.5


def make_reference(
    documents: Sequence[TokenizedDocument], *, config: PipelineConfig, tokenizer: WordTokenizer
) -> tuple[PairTable, Masks]:
    """Return the pairs and the masks of all passes over a bucket (the documents of one shard). The masks are in the
    order of the pairs.

    The algorithm is that of BERT's published script for one input file, without its last shuffle. The order of
    `documents` does not matter, because they are sorted by document id and these ids seed the random generator.
    """
    order = sorted(range(len(documents)), key=lambda index: documents[index].id)
    rng = draws.stream(config.seed, "reference", *(documents[index].id for index in order))
    rng.shuffle(order)
    settings = ReferenceSettings(
        max_seq_length=config.max_seq_length,
        max_predictions=config.predictions,
        short_sequence_probability=config.short_sequence_probability,
        masked_probability=config.masked_probability,
        whole_word=config.masking == "whole_word",
    )
    maker = ReferenceMaker([documents[index] for index in order], tokenizer=tokenizer, settings=settings, rng=rng)
    tables: list[PairTable] = []
    positions, inputs, counts = array("H"), array("i"), array("q", [0])
    for pass_number in range(config.passes):
        rows: list[tuple[Pair, int, int]] = []
        for index in range(len(order)):
            for ordinal, (pair, masked) in enumerate(maker.instances(index)):
                rows.append((pair, ordinal, pass_number))
                positions.extend(masked)
                inputs.extend(masked.values())
                counts.append(len(masked))
        tables.append(PairTable.from_pairs(rows, documents=order))
    masks = Masks(
        np.array(positions, np.uint16),
        np.array(inputs, np.int32).astype(tokenizer.id_dtype),
        np.cumsum(np.array(counts, np.int64)),
    )
    return PairTable.concatenate(tables), masks


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """The options of BERT's published script (create_pretraining_data.py)."""

    max_seq_length: int
    max_predictions: int
    short_sequence_probability: float
    masked_probability: float
    whole_word: bool


class ReferenceMaker:
    """Makes the instances (masked pairs) of documents. The order of calls matters, because all draws use one `rng`."""

    def __init__(
        self,
        documents: Sequence[TokenizedDocument],
        *,
        tokenizer: WordTokenizer,
        settings: ReferenceSettings,
        rng: random.Random,
    ) -> None:
        self._corpus = Corpus(documents, bounds=[whole_units(document) for document in documents])
        self._tokenizer, self._settings, self._rng = tokenizer, settings, rng
        self._skipped = {tokenizer.special.cls, tokenizer.special.sep}
        self._continues = [token.startswith(PIECE_PREFIX) for token in tokenizer.tokens]
        if settings.whole_word and not any(self._continues):
            raise ValueError(
                f"published whole-word masking joins pieces that begin with {PIECE_PREFIX}, and the vocabulary has "
                f"none; use mode: strict, which takes words from the tokenizer, or masking: token"
            )

    def instances(self, index: int) -> Iterator[tuple[Pair, dict[int, int]]]:
        """Yield each pair of the document with the index `index`. With each pair comes a dict that maps the masked
        positions (ascending) to the token ids that the model sees there."""
        pairs = pair_document(
            self._corpus,
            index=index,
            max_seq_length=self._settings.max_seq_length,
            short_sequence_probability=self._settings.short_sequence_probability,
            next_sentence="random_document",
            rules=REFERENCE,
            rng=self._rng,
        )
        for pair in pairs:
            yield pair, self._mask(self.row(pair))

    def row(self, pair: Pair) -> list[int]:
        """Return the token ids of the pair's unmasked row, [CLS] A [SEP] B [SEP]."""
        assert pair.second is not None  # random_document always has a second segment
        special = self._tokenizer.special
        return [special.cls, *self._ids(pair.first), special.sep, *self._ids(pair.second), special.sep]

    def _ids(self, segment: Segment) -> list[int]:
        ids: Ids = self._corpus.documents[segment.document].ids[segment.start : segment.stop]
        return list(map(int, ids))

    def _mask(self, ids: list[int]) -> dict[int, int]:
        rng, settings = self._rng, self._settings
        words: list[list[int]] = []
        for position, token in enumerate(ids):
            if token in self._skipped:
                continue
            if settings.whole_word and words and self._continues[token]:
                words[-1].append(position)  # joined even if a [SEP] is between
            else:
                words.append([position])
        rng.shuffle(words)
        budget = min(settings.max_predictions, max(1, round(len(ids) * settings.masked_probability)))
        masked: dict[int, int] = {}
        for word in words:
            if len(masked) >= budget:
                break
            if len(masked) + len(word) > budget:
                continue
            for position in word:
                if rng.random() < _MASKED_SHARE:
                    masked[position] = self._tokenizer.special.mask
                elif rng.random() < _KEPT_SHARE:
                    masked[position] = ids[position]
                else:
                    masked[position] = rng.randint(0, self._tokenizer.vocab_size - 1)
        return dict(sorted(masked.items()))


def read_files(paths: Sequence[str], *, tokenizer: WordTokenizer) -> list[TokenizedDocument]:
    """Read text files with one sentence a line, and return their documents, tokenized. Empty documents are left out.

    A blank line ends a document. As in BERT's published script, the end of a file does not end a document. Raises
    ValueError if a file is missing or not UTF-8, or if there is no document.
    """
    documents: list[list[str]] = [[]]
    for path in paths:
        try:
            text = Path(path).read_bytes().decode("utf-8")
        except FileNotFoundError as error:
            raise ValueError(f"{path}: no such file; give text files, one sentence a line") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: byte {error.start} is not UTF-8; convert the file") from error
        lines = text.split("\n")
        for line in lines[:-1] if lines[-1] == "" else lines:
            sentence = line.strip()
            if sentence:
                documents[-1].append(sentence)
            else:
                documents.append([])
    tokenized = [tokenizer.tokenize(Document("", tuple(sentences))) for sentences in documents if sentences]
    kept = [document for document in tokenized if document.ids.size]
    if not kept:
        raise ValueError(f"{', '.join(paths)}: no document with a token in it; give text, one sentence a line")
    return kept


def reference_lines(
    documents: Sequence[TokenizedDocument],
    *,
    tokenizer: WordTokenizer,
    settings: ReferenceSettings,
    dupe_factor: int,
    seed: int,
) -> Iterator[str]:
    """Yield all instances (masked pairs) as lines of JSON, in shuffled order. `dupe_factor` says how many passes over
    `documents` are made.

    The keys are `tokens` (after masking), `segment_ids`, `is_random_next`, `masked_lm_positions` and
    `masked_lm_labels`.
    """
    rng, shuffled = random.Random(seed), list(documents)
    rng.shuffle(shuffled)
    maker = ReferenceMaker(shuffled, tokenizer=tokenizer, settings=settings, rng=rng)
    instances = [
        instance for _ in range(dupe_factor) for index in range(len(shuffled)) for instance in maker.instances(index)
    ]
    rng.shuffle(instances)
    names = tokenizer.tokens
    for pair, masked in instances:
        ids = maker.row(pair)
        labels = [names[ids[position]] for position in masked]
        for position, token in masked.items():
            ids[position] = token
        first_length = pair.first.stop - pair.first.start + 2
        yield json.dumps(
            {
                "tokens": [names[token] for token in ids],
                "segment_ids": [0] * first_length + [1] * (len(ids) - first_length),
                "is_random_next": pair.label == 1,
                "masked_lm_positions": list(masked),
                "masked_lm_labels": labels,
            }
        )


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the masked pairs that BERT's published script makes from text files. Return the exit status: 0, or 2 for
    bad input."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.instances.reference", description=main.__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="one sentence a line, a blank line between documents")
    parser.add_argument("--vocab", required=True, help="vocab.txt or tokenizer.json")
    parser.add_argument("--cased", action="store_true", help="the vocab.txt is cased")
    parser.add_argument("--max-seq-length", type=int, required=True)
    parser.add_argument("--max-predictions", type=int, required=True)
    parser.add_argument("--dupe-factor", type=int, required=True, help="passes over the documents")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--whole-word", action="store_true", help="mask whole words")
    parser.add_argument("--short-seq-prob", type=float, default=0.1)
    parser.add_argument("--masked-lm-prob", type=float, default=0.15)
    options = parser.parse_args(arguments)
    if options.max_seq_length < 5:
        raise ValueError(f"--max-seq-length {options.max_seq_length}: two tokens and three specials need at least 5")
    tokenizer = WordTokenizer.from_path(options.vocab, lowercase=not options.cased)
    settings = ReferenceSettings(
        max_seq_length=options.max_seq_length,
        max_predictions=options.max_predictions,
        short_sequence_probability=options.short_seq_prob,
        masked_probability=options.masked_lm_prob,
        whole_word=options.whole_word,
    )
    documents = read_files(options.files, tokenizer=tokenizer)
    for line in reference_lines(
        documents, tokenizer=tokenizer, settings=settings, dupe_factor=options.dupe_factor, seed=options.seed
    ):
        print(line)
    return 0


if __name__ == "__main__":
    exit_with(main())
