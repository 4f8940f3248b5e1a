"""Text to a data set of masked sentence pairs: `python pipeline/run.py --config FILE key.sub=value -- --beam_option`.

The recipe: list the splits, get the vocabulary, build every shard on a Beam engine, check, publish, manifest last.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__" and not __package__:
    sys.path[0] = str(_ROOT)  # as a script, pipeline/ itself would stand first and its modules hide others

# ruff: noqa: E402
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from traceback import format_exc
from typing import Any

from pipeline import storage
from pipeline.buckets import choose_buckets
from pipeline.clusters import DaskCluster, check_engine, open_cluster, watched
from pipeline.config import PipelineConfig
from pipeline.documents import Split
from pipeline.doubts import list_doubts
from pipeline.engine_config import FLAGS, KEYS
from pipeline.inputs import (
    ChangedInputError,
    fingerprint_files,
    join_fingerprints,
    list_changed,
    list_modified,
    list_versions,
)
from pipeline.interrupts import catch_interrupts, exit_with, fail_interrupted
from pipeline.job import SHARDS, SPILLS, Job, local_notes, names_runner
from pipeline.ledger import Kind
from pipeline.manifest import TOKENIZER_FOLDER, Manifest, read_manifest, write_manifest
from pipeline.output import REPORT_NAME, OutputFolder, check_writable
from pipeline.progress import ProgressPrinter
from pipeline.publish import check_labels, hash_build, hash_code, library_versions, list_warnings, write_set
from pipeline.reading import split_key
from pipeline.rejects import write_rejects
from pipeline.settings import (
    Arguments,
    describe,
    expand_path,
    fail,
    load_settings,
    refuse_flags,
    refuse_lost_path,
    split_arguments,
    to_tree,
    validate,
)
from pipeline.sources import list_read_warnings, list_splits, share_books
from pipeline.sources.listing import check_brought, refuse_own_files
from pipeline.store_output import StoredOutput, open_output_folder
from pipeline.vocabulary import check_name, train_vocabulary
from pipeline.wordpieces import WordTokenizer

SAMPLE_CONFIG = _ROOT / "pipeline" / "configs" / "sample.yaml"
CLUSTER_WORKERS = 16
"""Workers of an engine whose number nobody gave."""
_USAGE = """usage: python pipeline/run.py [--config FILE] [key.sub=value ...] [--engine local|dask|ray] [--dry-run]
       [--traceback] [-- --beam_option ...]

Builds a data set of masked sentence pairs from text. Without --config it builds the sample set.
Relative paths are relative to the current directory (those of the sample config to the repository).
--dry-run reads a sample, shows rows, bytes, time, room and, with --price=P of a CPU's hour, the price; it starts and
writes nothing.
--engine says where the workers are. What stands after -- goes to Apache Beam as it is; --runner=... there names any
other engine of Beam.

Settings of the config file, each also as key.sub=value:
"""

Say = Callable[[str], None]


def say_at_once(line: str) -> None:
    """Print a line of the recipe's story, also where the output is a pipe."""
    print(line, flush=True)


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

        from pipeline.engines import run_graph  # Beam takes 2 s to import; --help and refused input need not wait

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
        write_manifest(output.root, manifest, run=run)
        output.sweep()
    say(
        f"{output.root}: {manifest.num_rows('train'):,} training rows ({manifest.num_tokens('train'):,} tokens) in "
        f"{len(manifest.shards_of('train'))} shards, {manifest.num_rows('validation'):,} validation rows; "
        f"report: {storage.join(output.root, REPORT_NAME)}"
    )
    return manifest


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
    path = storage.join(folder, _vocabulary_name(config))
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


def given_vocabulary(config: PipelineConfig) -> WordTokenizer | None:
    """The vocabulary of vocabulary.path; None where one is to be trained."""
    settings = config.vocabulary
    if settings.path is None or (settings.train and not storage.exists(settings.path)):
        return None
    return WordTokenizer.from_path(settings.path, lowercase=settings.lowercase, strip_accents=settings.strip_accents)


def trained_vocabulary(
    config: PipelineConfig,
    *,
    scratch: str,
    say: Say,
    beam_options: Sequence[str] = (),
    cluster: DaskCluster | None = None,
) -> WordTokenizer:
    """Train a vocabulary into vocabulary.path, where later builds find it, or for this build alone."""
    settings = config.vocabulary
    path = settings.path if settings.path is not None else storage.join(scratch, _vocabulary_name(config))
    say(f"training a vocabulary of {settings.size:,} entries into {path}")
    train_vocabulary(config, path=path, beam_options=beam_options, cluster=cluster)
    return WordTokenizer.from_path(path, lowercase=settings.lowercase, strip_accents=settings.strip_accents)


def _vocabulary_name(config: PipelineConfig) -> str:
    return "vocab.txt" if config.vocabulary.algorithm == "wordpiece" else "tokenizer.json"


def choose_workers(config: PipelineConfig, *, say: Say) -> int:
    """Number of local worker processes; more than there are cores is allowed, with a warning."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if config.engine == "local" and config.workers is not None and config.workers > cores:
        say(f"warning: workers={config.workers} is more than the {cores} cores of this machine")
    return config.workers or cores


def count_readers(config: PipelineConfig, *, workers: int, beam_options: Sequence[str] = ()) -> int:
    """Workers that great books are shared by: `workers` of this machine, or those of an engine, as far as known."""
    if config.engine == "local" and not names_runner(beam_options):
        return workers
    return config.workers or CLUSTER_WORKERS


def read_config(arguments: Arguments, *, say: Say = say_at_once) -> PipelineConfig:
    """The config of a command line, with every path made absolute. ValueError where a source is to be brought first.

    Relative paths are relative to the current directory; those that the sample config brings, to the repository.
    """
    if arguments.file is not None:
        config = load_settings(PipelineConfig, file=arguments.file, overrides=arguments.overrides)
        config = absolute_paths(config, base_of=lambda path: Path.cwd())
        check_brought(config)
        return config
    say(f"no --config given: using {SAMPLE_CONFIG}")
    if not arguments.overrides and not (_ROOT / "data" / "sample").is_dir():
        raise ValueError(f"{_ROOT / 'data' / 'sample'}: the sample corpus is not there; fetch it with `make sample`")
    sample = load_settings(PipelineConfig, file=SAMPLE_CONFIG)
    brought = {sample.output, sample.vocabulary.path, *(path for source in sample.sources for path in source.paths)}
    config = load_settings(PipelineConfig, file=SAMPLE_CONFIG, overrides=arguments.overrides)
    return absolute_paths(config, base_of=lambda path: _ROOT if path in brought else Path.cwd())


def absolute_paths(config: PipelineConfig, *, base_of: Callable[[str], Path]) -> PipelineConfig:
    """The same config with output, vocabulary.path and every source's path joined to `base_of(path)`."""

    def absolute(path: str, *, key: str) -> str:
        expanded = expand_path(path, key=key)
        if storage.is_url(expanded):
            return expanded
        refuse_lost_path(expanded, key=key)
        return str(base_of(path) / expanded)

    tree = to_tree(config)
    tree["output"] = absolute(config.output, key="output")
    if config.cleaning.keep_rejects is not None:
        tree["cleaning"]["keep_rejects"] = absolute(config.cleaning.keep_rejects, key="cleaning.keep_rejects")
    if config.vocabulary.path is not None:
        tree["vocabulary"]["path"] = absolute(config.vocabulary.path, key="vocabulary.path")
    for index, (source, entry) in enumerate(zip(config.sources, tree["sources"], strict=True)):
        entry["path"] = [absolute(path, key=f"sources.{index}.path") for path in source.paths]
        if source.clean_documents is not None:
            entry["clean_documents"] = absolute(source.clean_documents, key=f"sources.{index}.clean_documents")
    return validate(PipelineConfig, tree, origin="config")


def read_price(flags: Sequence[str], *, program: str) -> float | None:
    """The number of --price=P, None without it; ValueError where it is none, or goes with no --dry-run."""
    given = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == "--price"]
    if not given:
        return None
    if "--dry-run" not in flags:
        raise ValueError(f"{program}: --price goes with --dry-run; add it")
    try:
        price = float(given[-1])
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        raise ValueError(f"{program}: --price={given[-1]}: give a number above 0, as in --price=0.05")
    return price


def show_log() -> None:
    """Notes and warnings of our own modules go to stderr, those of libraries from warnings on."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pipeline").setLevel(logging.INFO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0, 2 for what the user can mend, 130 or 143 where interrupted."""
    program = "pipeline/run.py"
    details = False
    show_log()
    try:
        with catch_interrupts():
            parsed = split_arguments(list(sys.argv[1:] if arguments is None else arguments), program=program, keys=KEYS)
            refuse_flags(parsed.flags, program=program, known=FLAGS)
            if "--help" in parsed.flags:
                print(_USAGE + describe(PipelineConfig))
                return 0
            details = "--traceback" in parsed.flags
            price = read_price(parsed.flags, program=program)
            config = read_config(parsed)
            if "--dry-run" in parsed.flags:
                from pipeline.dry_run import describe_build  # it builds upon this module

                check_engine(config, beam_options=parsed.rest)
                for line in describe_build(config, price=price):
                    say_at_once(line)
                return 0
            build(config, beam_options=parsed.rest)
    except (ValueError, OSError) as error:
        if details:
            print(getattr(error, "details", "") or format_exc(), file=sys.stderr)
        return fail(error)
    except KeyboardInterrupt as error:
        return fail_interrupted(error)
    return 0


if __name__ == "__main__":
    exit_with(main())
