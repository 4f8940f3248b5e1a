"""The recipe of a build.

List the splits, get the vocabulary, build every shard on a Beam engine, check, publish, manifest last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.build.advice import list_doubts
from pipeline.build.read_split import split_key
from pipeline.cleaning import write_rejects
from pipeline.config import PipelineConfig
from pipeline.console import Say, say_at_once
from pipeline.dataset import TOKENIZER_FOLDER, Manifest, read_manifest, write_manifest
from pipeline.documents import Split
from pipeline.engines import DaskCluster, check_engine, choose_workers, count_readers, open_cluster, watched
from pipeline.output import (
    REPORT_NAME,
    OutputFolder,
    StoredOutput,
    check_labels,
    check_writable,
    hash_build,
    list_warnings,
    open_output_folder,
    write_set,
)
from pipeline.runtime import SHARDS, SPILLS, Job, Kind, ProgressPrinter, local_notes, names_runner, temporary_below
from pipeline.settings import to_tree
from pipeline.shuffle import choose_buckets
from pipeline.sources import (
    ChangedInputError,
    fingerprint_files,
    join_fingerprints,
    list_changed,
    list_modified,
    list_read_warnings,
    list_splits,
    list_versions,
    refuse_own_files,
    share_books,
)
from pipeline.tally import BuildResult, ReadTally
from pipeline.tokenizer import WordTokenizer
from pipeline.versions import hash_code, library_versions
from pipeline.vocabulary import check_name, given_vocabulary, trained_vocabulary, vocabulary_name


def build(config: PipelineConfig, *, beam_options: Sequence[str] = (), say: Say = say_at_once) -> Manifest:
    """Build the data set that `config` describes into config.output; returns its manifest.

    A finished set of the same config and inputs is left as it is, an unfinished one is continued: of what an earlier
    start had finished, all that still has its hash is kept. Raises ValueError for whatever the user can mend, naming
    place, value and remedy; where that is input or settings, nothing is left in the output folder.
    """
    started = time.time()
    check_engine(config, beam_options=beam_options)
    check_paths(config)
    splits = list_splits(config.sources)
    buckets = choose_buckets(
        text_bytes=sum(split.text_bytes for split in splits),
        shards=None if config.shards == "auto" else config.shards,
        validation_fraction=config.validation_fraction,
    )
    workers = choose_workers(config, say=say)
    readers = count_readers(config, workers=workers, beam_options=beam_options)
    splits = share_books(splits, sources=config.sources, workers=readers)
    most = max(len(splits), buckets.train + buckets.validation)
    workers = min(workers, most)
    paths = {
        name: {split.path for split in splits if config.sources[split.source].called == name}
        for name in config.source_names
    }
    versions = list_versions(split.path for split in splits)
    fingerprints = fingerprint_files(split.path for split in splits)
    modified = list_modified(fingerprints)
    identity: dict[str, Any] = {
        "config": config.data_tree(),
        "inputs": {name: join_fingerprints(fingerprints[path] for path in found) for name, found in paths.items()},
        "modified": {
            name: [modified[path] for path in sorted(found, key=fingerprints.__getitem__) if path in modified]
            for name, found in paths.items()
        },
        "versions": library_versions(config),
        "code": hash_code(),
    }
    tokenizer = given_vocabulary(config)
    if tokenizer is not None:
        identity["vocabulary_hash"] = tokenizer.vocabulary_hash
    with (
        local_notes(config.output, shared=config.engine != "local" or names_runner(beam_options)) as notes,
        open_output_folder(config.output, identity=identity, notes=notes) as output,
        ExitStack() as stack,
    ):
        if output.finished:
            say(f"{output.root}: already complete, nothing to do")
            return read_manifest(output.root)
        total = sum(split.num_bytes for split in splits)
        where = f"{workers} worker(s)" if config.engine == "local" else f"engine {config.engine}"
        say(f"{len(splits)} splits, {total / 1e6:,.1f} MB of input, {where}")
        for doubt in list_doubts(config, tokenizer=tokenizer):
            say(f"warning: {doubt}")
        cluster = stack.enter_context(open_cluster(config, most=most, say=say))
        workers = workers if cluster is None else cluster.workers
        if tokenizer is None:
            tokenizer = kept_vocabulary(config, output=output, say=say) or trained_vocabulary(
                config, scratch=output.folder("vocabulary"), say=say, beam_options=beam_options, cluster=cluster
            )
            output.note_vocabulary(tokenizer.vocabulary_hash)
        tokenizer.save(output.staging / TOKENIZER_FOLDER)

        job = Job(
            config=config,
            buckets=buckets,
            tokenizer=output.share(f"{TOKENIZER_FOLDER}/tokenizer.json"),
            vocabulary_size=tokenizer.vocab_size,
            work=str(output.temporary),
            build=hash_build(config, buckets=buckets, vocabulary_hash=tokenizer.vocabulary_hash),
            inputs={path: f"{found} {modified.get(path, '')}" for path, found in fingerprints.items()},
            notes=output.notes,
        )
        found = sweep_work(job, splits=splits)
        if output.resumes:
            say(f"resuming: records of {found['split']} of {len(splits)} splits and {found['shard']} shards are there")
        progress = ProgressPrinter(job.progress, num_splits=len(splits), num_bytes=total)
        with progress, watched(progress, config=config):
            result, read = run_graph(splits, job=job, workers=workers, beam_options=beam_options, cluster=cluster)
        stack.close()  # what was started for the build is not needed to publish it
        if changed := list_changed(versions):
            forget(changed, job=job, splits=splits)
            path = min(changed)
            raise ChangedInputError(
                f"{path}: was written while the build read it ({versions[path]}; now {changed[path]}); run the same "
                f"command again once nothing writes to it"
            )
        say(progress.summary())
        for fault in job.ledger.take_damaged():
            say(f"damaged, so made again: {fault}")
        if output.resumes:
            kept, of_shards = progress.count_kept(), progress.read_plan()["shards"]
            say(f"resumed: {kept['read']} of {len(splits)} splits and {kept['shard']} of {of_shards} shards kept")

        check_labels(result, config=config)
        for warning in [*list_read_warnings(config.sources, read=read), *list_warnings(result, config=config)]:
            say(f"warning: {warning}")
        run = {
            "inputs": identity["inputs"],
            "modified": identity["modified"],
            "workers": workers,
            "sources": to_tree(config)["sources"],
        }
        run["seconds"] = round(time.time() - started, 1)
        manifest = write_set(output.staging, config=config, tokenizer=tokenizer, result=result, read=read, run=run)
        if config.cleaning.keep_rejects is not None:
            runs = [*read.rejects, *result.left_out.rejects]
            scratch = output.staging / "rejects"
            scratch.mkdir(exist_ok=True)
            say(f"rejects: {write_rejects(runs, folder=config.cleaning.keep_rejects, scratch=scratch)}")
        output.publish()
        with output.held():
            write_manifest(output.root, manifest, run=run)
        output.sweep()
    say(
        f"{output.root}: {manifest.num_rows('train'):,} training rows ({manifest.num_tokens('train'):,} tokens) in "
        f"{len(manifest.shards_of('train'))} shards, {manifest.num_rows('validation'):,} validation rows; "
        f"report: {storage.join(output.root, REPORT_NAME)}"
    )
    return manifest


def run_graph(
    splits: Sequence[Split], *, job: Job, workers: int, beam_options: Sequence[str], cluster: DaskCluster | None = None
) -> tuple[BuildResult, ReadTally]:
    """Build every shard. Raises as run_on_engine."""
    from pipeline.engines import local  # Beam takes 2 s to import

    local.note_unknown(beam_options)
    from pipeline.build.graph import build_graph, load_result  # after the engine, which makes Beam quiet

    hands = None if cluster is not None or names_runner(beam_options) else workers
    lay_out = partial(build_graph, splits=splits, job=job, hands=hands)
    local.run_on_engine(
        lay_out,
        exchange=job.exchange,
        held=job.work,
        temporary=temporary_below(job.notes),
        workers=workers,
        beam_options=beam_options,
        cluster=cluster,
    )
    return load_result(job)


def sweep_work(job: Job, *, splits: Sequence[Split]) -> Counter[Kind]:
    """Remove what an earlier start left half-made; count the splits and shards that it had finished."""
    names = {job.ledger.record_name("split", split_key(split, job=job)) for split in splits}
    return job.ledger.sweep(folders=(SPILLS, SHARDS), splits=names)


def check_paths(config: PipelineConfig) -> None:
    """ValueError for what would be noticed late: files of ours where a source reads, rejects that cannot be written, a
    name that no vocabulary can have."""
    refuse_own_files(config)
    rejects = config.cleaning.keep_rejects
    if rejects is not None and not storage.is_url(rejects):
        check_writable(Path(rejects), key="cleaning.keep_rejects")
    given = config.vocabulary.path
    if given is not None and config.vocabulary.train and not storage.exists(given):
        check_name(Path(given), settings=config.vocabulary)


def forget(changed: Collection[str], *, job: Job, splits: Sequence[Split]) -> None:
    """Remove what was read of the files `changed`, and all shards: any may hold some of it."""
    good = [split for split in splits if split.path not in changed]
    names = {job.ledger.record_name("split", split_key(split, job=job)) for split in good}
    job.ledger.sweep(folders=(SPILLS, SHARDS), splits=names, keep_shards=False)


def kept_vocabulary(config: PipelineConfig, *, output: OutputFolder | StoredOutput, say: Say) -> WordTokenizer | None:
    """The vocabulary that an earlier start had trained for this build alone; None where it is not as it was, and then
    nothing of it is left."""
    settings = config.vocabulary
    folder = output.folder("vocabulary")
    path = storage.join(folder, vocabulary_name(config))
    if settings.path is not None or output.vocabulary_hash is None or not storage.exists(path):
        storage.delete_tree(folder)  # what a killed training left
        return None
    try:
        tokenizer = WordTokenizer.from_path(path, lowercase=settings.lowercase, strip_accents=settings.strip_accents)
    except ValueError:
        tokenizer = None
    if tokenizer is None or tokenizer.vocabulary_hash != output.vocabulary_hash:
        say(f"damaged, so made again: {path}: changed since it was written")
        return None
    return tokenizer
