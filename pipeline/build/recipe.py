"""Runs a whole build: list the splits (parts of the input), get the vocabulary, build the shards on an engine, check
and publish them, and write the manifest last."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.build.advice import list_advice, refuse_few_books
from pipeline.build.inputs import BuildInputs, describe_identity, find_inputs
from pipeline.build.read_split import split_key
from pipeline.cleaning import write_rejects
from pipeline.config import PipelineConfig
from pipeline.console import Say, say_at_once
from pipeline.dataset import TOKENIZER_FOLDER, Manifest, read_manifest, write_manifest
from pipeline.dedup import short_names, write_runs
from pipeline.documents import Split
from pipeline.engines import DaskCluster, check_engine, choose_workers, open_cluster, watched
from pipeline.output import (
    REPORT_NAME,
    OutputFolder,
    StoredOutput,
    check_labels,
    check_shortcuts,
    check_writable,
    hash_build,
    list_warnings,
    open_output_folder,
    write_set,
)
from pipeline.runtime import (
    SHARDS,
    SPILLS,
    BuildContext,
    Kind,
    ProgressPrinter,
    local_notes,
    names_runner,
    temporary_below,
)
from pipeline.settings import to_tree
from pipeline.shuffle import Buckets, choose_buckets
from pipeline.sources import ChangedInputError, join_fingerprints, list_changed, list_read_warnings, refuse_own_files
from pipeline.tally import BuildResult, ReadTally
from pipeline.tokenizer import WordTokenizer
from pipeline.units import count_of, describe_bytes
from pipeline.vocabulary import (
    check_dictionary,
    check_name,
    given_vocabulary,
    open_vocabulary,
    refuse_lost_letters,
    trained_vocabulary,
    vocabulary_name,
)


def build(config: PipelineConfig, *, beam_options: Sequence[str] = (), say: Say = say_at_once) -> Manifest:
    """Build the data set that `config` describes in the folder config.output, and return its manifest. `say` shows
    messages to the user.

    If the folder has a finished data set of the same config and inputs, the data set stays unchanged. If the data set
    is unfinished, the build is continued. Finished splits and shards are then used if they still match their hashes.
    Raises ValueError for whatever the user can fix; the message names the place, the value and the remedy. If the input
    or the settings are at fault, nothing stays in config.output.
    """
    started = time.time()
    check_engine(config, beam_options=beam_options)
    check_paths(config)
    inputs = find_inputs(config)
    buckets = choose_buckets(
        text_bytes=inputs.text_bytes, shards=config.shards, validation_fraction=config.validation_fraction
    )
    most = max(len(inputs.splits), buckets.total)
    workers = min(choose_workers(config, say=say), most)
    given = given_vocabulary(config)
    identity = describe_identity(config, inputs=inputs, tokenizer=given)
    with (
        local_notes(config.output, shared=config.engine != "local" or names_runner(beam_options)) as notes,
        open_output_folder(config.output, identity=identity, notes=notes) as output,
    ):
        if output.finished:
            say(f"{output.root}: already complete, nothing to do")
            return read_manifest(output.root)
        say_what_is_read(config, inputs=inputs, workers=workers, vocabulary=given, say=say)
        if given is not None:
            refuse_lost_letters(config, tokenizer=given, splits=inputs.splits)
        list_held_texts(inputs, folder=output.temporary, say=say)
        with open_cluster(config, most=most, say=say) as cluster:
            workers = workers if cluster is None else cluster.workers
            tokenizer = given or find_or_train_vocabulary(
                config, splits=inputs.splits, output=output, say=say, beam_options=beam_options, cluster=cluster
            )
            tokenizer.save(output.staging / TOKENIZER_FOLDER, longest=config.max_seq_length)
            context = describe_context(config, inputs=inputs, buckets=buckets, tokenizer=tokenizer, output=output)
            begin_or_resume(context, splits=inputs.splits, resumes=output.resumes, say=say)
            progress = ProgressPrinter(context.progress, num_splits=len(inputs.splits), num_bytes=inputs.num_bytes)
            with progress, watched(progress, config=config):
                result, read = run_graph(
                    inputs.splits, context=context, workers=workers, beam_options=beam_options, cluster=cluster
                )
        refuse_changed_input(inputs, context=context)
        say_what_was_done(progress, context=context, num_splits=len(inputs.splits), resumes=output.resumes, say=say)
        check_labels(result, config=config)
        check_shortcuts(result, config=config)
        warnings = list_warnings(result, config=config, read=read)
        for warning in [*list_read_warnings(config.sources, read=read), *warnings]:
            say(f"warning: {warning}")
        run = {name: identity[name] for name in ("inputs", "modified")}
        run |= {"workers": workers, "sources": to_tree(config)["sources"], "seconds": round(time.time() - started, 1)}
        manifest = write_set(output.staging, config=config, tokenizer=tokenizer, result=result, read=read, run=run)
        leave_rejects(config, scratch=output.staging, read=read, result=result, say=say)
        output.publish()
        with output.held():
            write_manifest(output.root, manifest, run=run)
        output.sweep()
    say_what_came_out(manifest, root=output.root, say=say)
    return manifest


def check_paths(config: PipelineConfig) -> None:
    """Check paths in the config early. Raises ValueError if a source would read the build's own files, if rejects
    (documents left out) cannot be written, or if the vocabulary to train has an invalid file name. Also raises it if
    `dictionary_words` asks for dictionaries to find words with, and the library that has them is absent."""
    refuse_own_files(config)
    check_dictionary(config)
    rejects = config.cleaning.keep_rejects
    if rejects is not None and not storage.is_url(rejects):
        check_writable(Path(rejects), key="cleaning.keep_rejects")
    given = config.vocabulary.path
    if given is not None and config.vocabulary.train and not storage.exists(given):
        check_name(Path(given), settings=config.vocabulary)


def say_what_is_read(
    config: PipelineConfig, *, inputs: BuildInputs, workers: int, vocabulary: WordTokenizer | None, say: Say
) -> None:
    """Print the size of the input, the workers and advice on the config. Raises ValueError if there are too few books
    to hold any out for validation."""
    where = count_of(workers, "worker") if config.engine == "local" else f"engine {config.engine}"
    say(f"{count_of(len(inputs.splits), 'split')}, {describe_bytes(inputs.num_bytes)} of input, {where}")
    refuse_few_books(config, splits=inputs.splits)
    for advice in list_advice(config, tokenizer=vocabulary):
        say(f"warning: {advice}")


def find_or_train_vocabulary(
    config: PipelineConfig,
    *,
    splits: Sequence[Split],
    output: OutputFolder | StoredOutput,
    say: Say,
    beam_options: Sequence[str],
    cluster: DaskCluster | None,
) -> WordTokenizer:
    """Return the tokenizer of a vocabulary trained from the sources. If an earlier start of this build has trained the
    vocabulary, use it; otherwise train it now. `say` shows messages to the user."""
    tokenizer = find_trained_vocabulary(config, output=output, say=say)
    if tokenizer is None:
        scratch = output.folder("vocabulary")
        tokenizer = trained_vocabulary(
            config, splits=splits, scratch=scratch, say=say, beam_options=beam_options, cluster=cluster
        )
    output.note_vocabulary(tokenizer.vocabulary_hash)
    return tokenizer


def find_trained_vocabulary(
    config: PipelineConfig, *, output: OutputFolder | StoredOutput, say: Say
) -> WordTokenizer | None:
    """If an earlier start of this build trained a vocabulary, return its tokenizer. Return None if vocabulary.path is
    set, if no vocabulary was trained, or if the vocabulary's file is missing or has changed."""
    settings = config.vocabulary
    folder = output.folder("vocabulary")
    path = storage.join(folder, vocabulary_name(config))
    if settings.path is not None or output.vocabulary_hash is None or not storage.exists(path):
        storage.delete_tree(folder)  # files that a killed training left behind
        return None
    try:
        tokenizer = open_vocabulary(config, path)
    except ValueError:
        tokenizer = None
    if tokenizer is None or tokenizer.vocabulary_hash != output.vocabulary_hash:
        say(f"damaged, so rebuilt: {path}: changed since it was written")
        return None
    return tokenizer


def describe_context(
    config: PipelineConfig,
    *,
    inputs: BuildInputs,
    buckets: Buckets,
    tokenizer: WordTokenizer,
    output: OutputFolder | StoredOutput,
) -> BuildContext:
    """Return what the workers need to know about the build. The workers read the tokenizer from the output's staging
    folder."""
    return BuildContext(
        config=config,
        buckets=buckets,
        tokenizer=output.share(f"{TOKENIZER_FOLDER}/tokenizer.json"),
        vocabulary_size=tokenizer.vocab_size,
        work=str(output.temporary),
        build=hash_build(config, buckets=buckets, vocabulary_hash=tokenizer.vocabulary_hash),
        inputs=inputs.contents,
        hold_out=storage.join(output.temporary, name_held_texts(inputs)) if inputs.held_out else "",
        notes=output.notes,
    )


def name_held_texts(inputs: BuildInputs) -> str:
    """Return the name of the file with the runs (13 words in a row) of the evaluation texts that the setting `hold_out`
    names. A document that has one of these runs is left out of the data set. The name changes with the texts' files and
    with their short names, by which such documents are counted."""
    paths = list(inputs.held_out)
    named = (f"{inputs.held_out[path]} {name}" for path, name in zip(paths, short_names(paths), strict=True))
    parts = (hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() for text in named)
    return f"hold-out-{join_fingerprints(parts)[:16]}.arrow"


def list_held_texts(inputs: BuildInputs, *, folder: Any, say: Say) -> None:
    """Write the file with the runs (13 words in a row) of the evaluation texts that the setting `hold_out` names, and
    print how many texts and runs were found. A document that has one of these runs is left out of the data set. Do
    nothing if `hold_out` names no texts.

    Raises ValueError if a file of these texts has no words, or if there are too many runs.
    """
    if not inputs.held_out:
        return
    files = write_runs(list(inputs.held_out), target=storage.join(folder, name_held_texts(inputs)))
    texts, short = sum(file.texts for file in files), sum(file.short for file in files)
    say(
        f"hold_out: {count_of(len(files), 'file')}, {count_of(texts, 'text')}, "
        f"{count_of(sum(file.runs for file in files), 'run')} of 13 words; of the texts, {short:,} have fewer than 13 "
        "words and are found only as whole documents"
    )


def begin_or_resume(context: BuildContext, *, splits: Sequence[Split], resumes: bool, say: Say) -> None:
    """Remove the files of splits (parts of the input) and shards that an earlier start of the build did not finish. If
    `resumes` is true, print how many splits and shards have a record that says they are finished."""
    found = sweep_work(context, splits=splits)
    if resumes:
        of_splits, shards = count_of(len(splits), "split"), count_of(found["shard"], "shard")
        say(f"resuming: found records of {found['split']} of {of_splits} and of {shards}")


def run_graph(
    splits: Sequence[Split],
    *,
    context: BuildContext,
    workers: int,
    beam_options: Sequence[str],
    cluster: DaskCluster | None = None,
) -> tuple[BuildResult, ReadTally]:
    """Build every shard with Beam. Return (result of the build, counts of the input). Raises WorkerError if a worker
    met an error that the user can fix, and otherwise what local.run_on_engine raises."""
    from pipeline.engines import local  # Beam takes 2 s to import

    local.note_unknown(beam_options)
    from pipeline.build.graph import build_graph, load_result  # imported after `local`, which silences Beam's warnings

    dealt_to = None if cluster is not None or names_runner(beam_options) else workers
    lay_out = partial(build_graph, splits=splits, context=context, workers=dealt_to)
    local.run_on_engine(
        lay_out,
        results_folder=context.results_folder,
        held=context.work,
        temporary=temporary_below(context.notes),
        workers=workers,
        beam_options=beam_options,
        cluster=cluster,
    )
    return load_result(context)


def refuse_changed_input(inputs: BuildInputs, *, context: BuildContext) -> None:
    """Check that no input file was written while the build read it. Otherwise remove what was read from such files, and
    all shards, because any shard may contain some of this text. Then raise ChangedInputError."""
    if changed := list_changed(inputs.versions):
        good = [split for split in inputs.splits if split.path not in changed]
        sweep_work(context, splits=good, keep_shards=False)
        path = min(changed)
        raise ChangedInputError(
            f"{path}: was written while the build read it ({inputs.versions[path]}; now {changed[path]}); run the same "
            f"command again once nothing writes to it"
        )


def sweep_work(context: BuildContext, *, splits: Collection[Split], keep_shards: bool = True) -> Counter[Kind]:
    """Remove the spill files (intermediate files), shards and records of the build that are no longer needed. The
    finished splits in `splits` keep their files and records. If `keep_shards` is true, so do finished shards.

    Return how many records remain of each kind ("split" and "shard").
    """
    names = {context.ledger.record_name("split", split_key(split, context=context)) for split in splits}
    return context.ledger.sweep(folders=(SPILLS, SHARDS), splits=names, keep_shards=keep_shards)


def say_what_was_done(
    progress: ProgressPrinter, *, context: BuildContext, num_splits: int, resumes: bool, say: Say
) -> None:
    """Print how much was read and written, and which splits and shards were rebuilt because they were damaged. If
    `resumes` is true, also print how many splits and shards of an earlier start were kept."""
    say(progress.summary())
    for fault in context.ledger.take_damaged():
        say(f"damaged, so rebuilt: {fault}")
    if resumes:
        kept, of_shards = progress.count_kept(), count_of(progress.read_plan()["shards"], "shard")
        say(f"resumed: {kept['read']} of {count_of(num_splits, 'split')} and {kept['shard']} of {of_shards} kept")


def leave_rejects(config: PipelineConfig, *, scratch: Path, read: ReadTally, result: BuildResult, say: Say) -> None:
    """Write rejects.jsonl, which has the documents that were left out, to the folder that the setting
    cleaning.keep_rejects names. Do nothing if the setting is null."""
    if config.cleaning.keep_rejects is None:
        return
    folder = scratch / "rejects"
    folder.mkdir(exist_ok=True)
    runs = [*read.rejects, *result.left_out.rejects]
    say(f"rejects: {write_rejects(runs, folder=config.cleaning.keep_rejects, scratch=folder)}")


def say_what_came_out(manifest: Manifest, *, root: Any, say: Say) -> None:
    """Print how many rows and shards the finished data set has, and the path of its report."""
    say(
        f"{root}: {count_of(manifest.num_rows('train'), 'training row')} ({manifest.num_tokens('train'):,} tokens) in "
        f"{count_of(len(manifest.shards_of('train')), 'shard')}, "
        f"{count_of(manifest.num_rows('validation'), 'validation row')}; "
        f"report: {storage.join(root, REPORT_NAME)}"
    )
