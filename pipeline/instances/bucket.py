"""All rows of a bucket, for the shard writer: pairs at once, masked rows on demand.

The pairs of all passes are held in memory (40 bytes a row); rows and masks are made in batches, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.config import PipelineConfig
from pipeline.instances.masking import Masks, make_masks
from pipeline.instances.pairs import PairTable, check_documents, make_pairs
from pipeline.instances.reference import make_reference
from pipeline.instances.rows import Rows, assemble_rows
from pipeline.tokenizer import TokenizedDocument, WordTokenizer


class Instances:
    """All rows of all passes over the documents of a bucket, in config.mode (strict or reference).

    `passes`: number for each document (strict mode; None: config.passes for all). The same set of documents gives the
    same rows in any order. Raises ValueError for fewer than two documents (random_document), two with the same id, or
    one without tokens.
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

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[Rows, list[Masks]]:
        """Make these rows (indices into `pairs`), in this order, and their masks_per_pair mask sets."""
        pairs = self.pairs.take(rows)
        made = assemble_rows(self._documents, pairs, special=self._tokenizer.special, seed=self._config.seed)
        if self._reference_masks is not None:
            return made, [self._reference_masks.take(rows)]
        sets = range(self._config.masks_per_pair)
        return made, make_masks(made, config=self._config, tokenizer=self._tokenizer, mask_sets=sets)
