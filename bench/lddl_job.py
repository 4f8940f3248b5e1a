"""Runs LDDL's own graph on one core, in the way in which LDDL's command sets it up.

Usage: LDDL_PYTHON bench/lddl_job.py SOURCE_FOLDER VOCABULARY OUTPUT MAX_SEQ_LENGTH
LDDL_PYTHON is a Python that has the `lddl` package, so this file imports nothing of Cloze. Dask's synchronous scheduler
replaces LDDL's cluster of processes, which would only cost more.
"""

from __future__ import annotations

import os
import sys


def main(source: str, vocabulary: str, output: str, max_seq_length: str) -> None:
    """Turn the documents in the folder `source` into pairs with static masks, and write the pairs to `output`.

    Each document is used once. Single tokens are masked, because LDDL cannot mask whole words.
    """
    import dask
    import transformers
    from lddl.dask.bert import pretrain

    os.makedirs(output)
    with dask.config.set({"scheduler": "synchronous", "dataframe.convert-string": False}):
        pairs = pretrain._get_pairs(
            books_path=source,
            target_seq_length=int(max_seq_length),
            short_seq_prob=0.1,
            blocksize=None,
            num_blocks=1,
            duplicate_factor=1,
            sample_ratio=1.0,
            seed=12345,
            tokenizer=transformers.BertTokenizerFast(vocabulary),
            masking=True,
            masked_lm_ratio=0.15,
        )
        pretrain._save(pairs, output, output_format="parquet", target_seq_length=int(max_seq_length), masking=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
