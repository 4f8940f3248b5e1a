"""Makes all rows of a bucket (the documents of one shard of the data set).

The pairs of all passes are held in memory (40 bytes a row). Rows and masks are made from them in batches, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.config import PipelineConfig
from pipeline.instances.masking import Masks, make_masks
from pipeline.instances.pairs import PairTable, check_documents, make_pairs
from pipeline.instances.partners import count_unlabelled
from pipeline.instances.reference import make_reference
from pipeline.instances.rows import Rows, assemble_rows
from pipeline.instances.shortcuts import Counts, count_shortcuts
from pipeline.tokenizer import TokenizedDocument, WordTokenizer


class Instances:
    """Makes all rows of a bucket (the documents of one shard), in strict mode (our own rules) or reference mode (the
    rules of BERT's published script), as config.mode says.

    `passes` says for each document how many times pairs are made from it; None means config.passes for each. Reference
    mode ignores `passes`. The rows do not depend on the order of `documents`. Raises ValueError if a document has no
    tokens, if two documents have the same id, or if config.next_sentence is random_document and there are fewer than
    two documents.
    """

    def __init__(
        self,
        documents: Sequence[TokenizedDocument],
        *,
        config: PipelineConfig,
        tokenizer: WordTokenizer,
        passes: Sequence[int] | None = None,
    ) -> None:
        check_documents(documents, next_sentence=config.next_sentence)
        self._documents, self._config, self._tokenizer = documents, config, tokenizer
        self._reference_masks: Masks | None = None
        if config.mode == "reference":
            self.pairs, self._reference_masks = make_reference(documents, config=config, tokenizer=tokenizer)
        else:
            count = config.passes if passes is None else max(passes)
            self.pairs = PairTable.concatenate(
                [make_pairs(documents, config=config, pass_number=number, passes=passes) for number in range(count)]
            )

    def __len__(self) -> int:
        return len(self.pairs)

    def count_unlabelled(self) -> Counter[tuple[str, int]]:
        """Return a count for each (reason, source): how many rows have no label, because no wrong next sentence was
        found.

        The reason is partners.ALONE (the source has no other document here) or partners.UNPAIRED (no place in the other
        documents was free). The source is an index into config.source_names.
        """
        if self._config.next_sentence != "random_document":
            return Counter()
        return count_unlabelled(self._documents, first_document=self.pairs.first_document, label=self.pairs.label)

    def count_shortcuts(self, rows: npt.NDArray[np.int64], *, made: Rows) -> Counts:
        """Count some rows for each shortcut (a simple rule that guesses the next-sentence label), and return the
        counts. From these counts, shortcuts.judge_shortcuts computes the accuracy of each shortcut.

        `rows` are indices into `pairs`, and `made` are these rows as `batch` returned them. The result maps the name of
        each rule to a Counter (see shortcuts.count_shortcuts). The result is empty if config.next_sentence is none.
        """
        if self._config.next_sentence == "none":
            return {}
        pairs = self.pairs.take(rows)
        sources = np.array([document.source for document in self._documents], np.int64)
        sizes = np.array([document.ids.size for document in self._documents], np.int64)
        places = pairs.second_start, sizes[pairs.second_document] - pairs.second_stop
        return count_shortcuts(
            ids=made.ids,
            offsets=made.offsets,
            first_length=made.first_length,
            label=made.label,
            sources=(sources[pairs.first_document], sources[pairs.second_document]),
            num_sources=len(self._config.source_names),
            max_seq_length=self._config.max_seq_length,
            places=places if self._config.next_sentence == "random_document" else None,
        )

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[Rows, list[Masks]]:
        """Return (rows, masks) for the pairs with the indices `rows` in `pairs`, in the order of `rows`.

        `masks` has one Masks for each mask set (one choice of the tokens to predict).
        """
        pairs = self.pairs.take(rows)
        made = assemble_rows(self._documents, pairs, special=self._tokenizer.special, seed=self._config.seed)
        if self._reference_masks is not None:
            return made, [self._reference_masks.take(rows)]
        sets = range(self._config.masks_per_pair)
        return made, make_masks(made, config=self._config, tokenizer=self._tokenizer, mask_sets=sets)
