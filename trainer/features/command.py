"""The command: `python -m trainer.features --model EXPORT --input TEXTS --output VECTORS key=value`.

.parquet is written batch by batch; .npy is made in memory, 3 kB a text for BERT-Base.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from pipeline import storage
from pipeline.console import command, say_at_once
from pipeline.settings import ConfigError, describe, load_settings, refuse_flags, split_arguments
from pipeline.storage import expand_path, locate
from pipeline.units import count_of
from trainer.features.config import FeaturesConfig
from trainer.features.layers import combine, hidden_states, pool
from trainer.finetune import COMPRESSED, Feature, TextEncoder, pack, pick_device, read_table, read_text, take, to_text
from trainer.hf import read_longest, read_model
from trainer.model import Batch

PROGRAM = "python -m trainer.features"
HELP = f"""usage: {PROGRAM} --model EXPORT --input TEXTS --output VECTORS [--config FILE] [key.sub=value ...]

Writes a vector for each text, made by a model as it is.

Settings:
"""
_KEYS = ("model", "input", "output")
_ENDINGS = (".parquet", ".npy")
_NO_TEXT = "input={}: holds no text; give a file with texts"


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 2 refused."""
    words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM, keys=_KEYS)
    refuse_flags(words.flags, program=PROGRAM, known=[f"--{key}=" for key in _KEYS])
    if "--help" in words.flags:
        print(HELP + describe(FeaturesConfig))
        return 0
    config = load_settings(FeaturesConfig, file=words.file, overrides=words.overrides)
    config = config.model_copy(update={key: expand_path(getattr(config, key), key=key) for key in _KEYS})
    say_at_once(write_vectors(config))
    return 0


def write_vectors(config: FeaturesConfig) -> str:
    """Write the vectors of all texts; return a line that says what was written. ValueError names what is bad."""
    if not config.output.endswith(_ENDINGS):
        raise ConfigError(f"output={config.output}: give a file that ends with {' or '.join(_ENDINGS)}")
    if config.output.endswith(".npy") and config.pool == "tokens":
        raise ConfigError("pool=tokens: texts have other numbers of tokens, which .npy cannot hold; give a .parquet")
    if not storage.is_url(config.output):
        storage.make_folder(storage.parent_of(config.output))
    batches = compute_vectors(config)
    count, width = 0, 0
    if config.output.endswith(".npy"):
        found = list(batches)
        if not found:
            raise ConfigError(_NO_TEXT.format(config.input))
        whole = torch.cat([vectors for _, _, vectors in found])
        count, width = whole.shape
        content = io.BytesIO()
        np.save(content, whole.numpy())
        storage.write_bytes(config.output, content.getvalue())
    else:
        with storage.open_output(config.output) as stream:
            writer: pq.ParquetWriter | None = None
            try:
                for batch, tokens, vectors in batches:
                    table = _to_table(vectors, batch=batch, tokens=tokens, first=count, config=config)
                    writer = writer or pq.ParquetWriter(stream, table.schema)
                    writer.write_table(table)
                    count, width = count + table.num_rows, vectors.shape[-1]
            finally:
                if writer is not None:
                    writer.close()  # before the stream, else the writer fails when it is collected
            if not count:
                raise ConfigError(_NO_TEXT.format(config.input))
    return f"{config.output}: {count_of(count, 'text')}, vectors of {width} numbers"


def compute_vectors(config: FeaturesConfig) -> Iterator[tuple[Batch, list[list[str]], Tensor]]:
    """Yield for each batch of texts its tokens on the device, their names by text, and the vectors on the CPU.

    The vectors are float32 [texts, width], or [T, width] with pool=tokens.
    """
    longest = read_longest(locate(config.model))
    if config.max_length is not None and config.max_length > longest:
        raise ConfigError(f"max_length={config.max_length}: {config.model} is for rows of {longest} tokens; lower it")
    encoder = TextEncoder(config.model, max_length=config.max_length or longest)
    device = pick_device(config.device)
    model = read_model(config.model)[0].to(device)
    if config.pool == "cls" and model.config.is_causal:
        raise ConfigError(
            f"pool=cls: {config.model} reads from left to right, so its [CLS] is the same for all texts; use pool=mean"
        )
    waiting: list[list[str]] = []

    @torch.no_grad()
    def run(texts: list[list[str]]) -> tuple[Batch, list[list[str]], Tensor]:
        encoded = [encoder.encode(pair) for pair in texts]
        rows = [encoder.join(pair[0].ids, pair[1].ids if len(pair) > 1 else None) for pair in encoded]
        batch = pack([Feature(0, (row,), 0) for row in rows], kind="classification", device=device).tokens
        vectors = combine(hidden_states(model, batch), config=config.layers)
        if config.pool != "tokens":
            vectors = pool(vectors, batch=batch, how=config.pool)
        names = [encoder.names(row.ids) for row in rows] if config.pool == "tokens" else []
        return batch, names, vectors.float().cpu()

    for texts in read_texts(config):
        waiting.append(texts)
        if len(waiting) == config.batch_size:
            yield run(waiting)
            waiting = []
    if waiting:
        yield run(waiting)


def read_texts(config: FeaturesConfig) -> Iterator[list[str]]:
    """Yield each text, or each pair of texts. Raises ValueError that names the row if it has no such text."""
    name = config.input
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    if name.endswith(".txt"):
        lines = read_text(locate(config.input)).split("\n")  # other line breaks of Unicode are part of a text
        for line in lines if lines[-1] else lines[:-1]:
            yield [line.removesuffix("\r")]
        return
    columns = [config.column, *([config.second_column] if config.second_column is not None else [])]
    for row in read_table(locate(config.input)):
        yield [to_text(take(row, column), place=row[0], name=column) for column in columns]


def _to_table(
    vectors: Tensor, *, batch: Batch, tokens: list[list[str]], first: int, config: FeaturesConfig
) -> pa.Table:
    width = vectors.shape[-1]
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.contiguous().view(-1).numpy()), width)
    about = {"cloze.model": config.model, "cloze.pool": config.pool, "cloze.layers": config.layers.model_dump_json()}
    numbers = pa.array(range(first, first + batch.num_pairs), pa.int64())
    if config.pool != "tokens":
        return pa.table({"id": numbers, "vector": flat}).replace_schema_metadata(about)
    lists = pa.ListArray.from_arrays(batch.offsets.cpu().numpy(), flat)
    return pa.table({"id": numbers, "tokens": tokens, "vectors": lists}).replace_schema_metadata(about)
