"""All rows of a bucket, as pairs first and as masked rows when asked for: what the shard writer calls.

The pairs of every pass are held (40 bytes a row); rows and masks are made a batch at a time, in any order.
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
    """Every row of every pass over the documents of a bucket; strict or reference as the config says.

    `passes` of each document (strict mode; None: config.passes of all).

    Raises ValueError for fewer than two documents (random_document), two with one id, or one without tokens.
    The same set of documents gives the same rows, whatever its order; only their order follows the ids.
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
            tables = [
                make_pairs(documents, config=config, pass_number=number, passes=passes) for number in range(count)
            ]
            self.pairs = PairTable.concatenate(tables)

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, rows: npt.NDArray[np.int64]) -> tuple[Rows, list[Masks]]:
        """These rows (indices into `pairs`), in this order, with their masks_per_pair mask sets."""
        pairs = self.pairs.take(rows)
        made = assemble_rows(self._documents, pairs, special=self._tokenizer.special, seed=self._config.seed)
        if self._reference_masks is not None:
            return made, [self._reference_masks.take(rows)]
        sets = range(self._config.masks_per_pair)
        return made, make_masks(made, config=self._config, tokenizer=self._tokenizer, mask_sets=sets)
