from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipeline.config.schema import PipelineConfig
from pipeline.settings import (
    Arguments,
    ConfigError,
    describe,
    dump_yaml,
    load_settings,
    parse_yaml,
    refuse_flags,
    split_arguments,
)
from pipeline.storage.paths import expand_path
from trainer.config.schema import TrainerConfig

PIPELINE = ["output=out", "sources=[{kind: books, path: a.txt}]"]
TRAINER = ["output=out", "data=set", "max_steps=10", "batch.pairs=8"]


def load_pipeline(*overrides: str) -> PipelineConfig:
    return load_settings(PipelineConfig, overrides=[*PIPELINE, *overrides])


def load_trainer(*overrides: str) -> TrainerConfig:
    return load_settings(TrainerConfig, overrides=[*TRAINER, *overrides])


def test_file_then_overrides(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("output: a\nsources:\n- {kind: text, path: x.txt}\nseed: 3\nmasked_probability: 1e-1\n")
    config = load_settings(PipelineConfig, file=file, overrides=["seed=4", "sources.0.path=[y.txt, z.txt]"])
    assert (config.output, config.seed, config.masked_probability) == ("a", 4, 0.1)
    assert config.sources[0].paths == ("y.txt", "z.txt")


@pytest.mark.parametrize("code", ["no", "No", "on", "off", "yes", "y"])
def test_a_text_like_no_is_a_text_where_a_text_is_meant(tmp_path: Path, code: str) -> None:
    """The code of Norwegian."""
    (tmp_path / "c.yaml").write_text(f"sources: [{{kind: text, path: x, language: {code}}}]\noutput: out\n")
    config = load_settings(PipelineConfig, file=tmp_path / "c.yaml")
    assert config.sources[0].language == code
    (tmp_path / "d.yaml").write_text(dump_yaml(config))
    assert load_settings(PipelineConfig, file=tmp_path / "d.yaml") == config
    changed = load_settings(PipelineConfig, file=tmp_path / "c.yaml", overrides=["sources.0.language=no"])
    assert changed.sources[0].language == "no"


@pytest.mark.parametrize(
    ("text", "value"), [("no", False), ("Off", False), ("yes", True), ("ON", True), ("false", False)]
)
def test_a_text_like_no_is_a_truth_value_where_one_is_meant(tmp_path: Path, text: str, value: bool) -> None:
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: x}}]\noutput: out\nvocabulary: {{lowercase: {text}, strip_accents: {text}}}\n"
    )
    vocabulary = load_settings(PipelineConfig, file=tmp_path / "c.yaml").vocabulary
    assert (vocabulary.lowercase, vocabulary.strip_accents) == (value, value)


def test_settings_survive_yaml(tmp_path: Path) -> None:
    for config in (load_pipeline("masks_per_pair=3"), load_trainer("optimizer.learning_rate=3e-4")):
        file = tmp_path / "c.yaml"
        file.write_text(dump_yaml(config))
        assert load_settings(type(config), file=file) == config


@pytest.mark.parametrize(
    "name", ["1e5", "7E10", "1.5", "010", "1:30", "0x1f", "yes", "null", "2020-01-01", "*a", "a #b"]
)
def test_a_text_that_looks_like_something_else_survives_yaml(tmp_path: Path, name: str) -> None:
    config = load_pipeline("sources.0.kind=jsonl", "sources.0.path=a.jsonl", f"sources.0.text_column='{name}'")
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    assert load_settings(PipelineConfig, file=tmp_path / "c.yaml").sources[0].text_column == name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1_000", 1_000),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("010", "010"),
        ("1:30", "1:30"),
        ("0x1F", 31),
    ],
)
def test_numbers_are_those_of_yaml_1_2(text: str, value: float | str) -> None:
    """PyYAML takes 010 for 8 and 1:30 for 90."""
    assert parse_yaml(text, origin="test") == value


@pytest.mark.parametrize("path", ["run #2", "*.xml", "@a", "a b"])
def test_an_override_is_no_place_for_comments_and_aliases(path: str) -> None:
    assert load_pipeline(f"output={path}").output == path
    assert load_pipeline(f"output='{path}'").output == path


def test_a_whole_number_stands_for_a_float_but_not_the_reverse() -> None:
    assert load_trainer("optimizer.weight_decay=0").optimizer.weight_decay == 0.0
    with pytest.raises(ConfigError, match=r"max_steps=1\.5: Input should be a valid integer"):
        load_trainer("max_steps=1.5")
    with pytest.raises(ConfigError, match=r"seed='7'"):
        load_trainer("seed='7'")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sources.\N{SUPERSCRIPT TWO}=5", "is not an index into a list of 1 entry"),
        ("max_seq_len=5", r"unknown key 'max_seq_len' \(value 5\); did you mean 'max_seq_length'\?"),
        ("vocabulary.siz=5", r"unknown key 'vocabulary\.siz' \(value 5\); did you mean 'size'\?"),
        ("qqqqqqqq=5", r"unknown key 'qqqqqqqq' \(value 5\); known: sources, vocabulary"),
        ("sources.0.kind=boks", r"sources\.0\.kind='boks': Input should be 'wikipedia'"),
        ("sources.3.kind=books", r"'3' is not an index into a list of 1 entry"),
        ("seed.sub=1", r"unknown key|has no 'sub'|valid integer"),
        ("output.a.b=1", r"'output' is a value and has no 'a'"),
        ("sources=[]", r"sources is empty; list at least one source"),
        ("sources.0.path=''", r"path is empty"),
        ("sources.0.rows_per_document=3", r"not for kind books; remove them"),
        ("sources=[{kind: parquet, path: a, row: sentence}]", r"set exactly one of document_column"),
        ("sources=[{kind: parquet, path: a, rows_per_document: 3}]", r"need row: sentence"),
        ("vocabulary.train=true", r"needs vocabulary\.path"),
        ("max_predictions=511", r"max_predictions=511 exceeds what max_seq_length=512 can hold"),
        ("masked_probability=1.5", r"less than 1"),
        ("output={a: 1", r"override 'output=\{a: 1' line 1, column 6: not valid YAML"),
        ("output={a: 1, a: 2}", r"key 'a' appears twice"),
        ("output=a\udcff", r"^override 'output=a\udcff': not valid YAML: unacceptable character .* position 1$"),
        ("output={[1, 2]: 3}", r"line 1, column 2: not valid YAML: a key is a list or mapping"),
        ("shards=x", r"shards='x': Input should be a valid integer; shards='x': Input should be 'auto'"),
        ("sources.0.path=5", r"sources\.0\.path=5: Input should be a valid string; sources\.0\.path=5: .* a list"),
        ("sources=[5]", r"sources\.0=5: Input should be a mapping"),
        ("nonsense", r"write key\.sub=value"),
    ],
)
def test_pipeline_refusals(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_pipeline(override)


def test_reference_mode_knows_only_what_was_published() -> None:
    with pytest.raises(ConfigError, match="needs next_sentence: random_document, not none"):
        load_pipeline("mode=reference", "next_sentence=none")
    with pytest.raises(ConfigError, match="whole_word or token, not span"):
        load_pipeline("mode=reference", "masking=span")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch.tokens=100", r"exactly one of batch\.pairs and batch\.tokens"),
        ("schedule.warmup_steps=10", r"schedule\.warmup_steps=10 leaves none"),
        ("zero_stage=0", r"set zero_stage=1"),
        ("model.size=huge", r"model\.size='huge'"),
        ("optimizer.name=lion", r"optimizer\.name='lion': Input should be 'adamw', 'lamb'"),
        ("model=tiny", r"model='tiny': Input should be a mapping"),
        ("optimizer.learning_rate=.inf", r"optimizer\.learning_rate=inf: Input should be a finite number"),
        (f"optimizer.learning_rate={'9' * 400}", r"optimizer\.learning_rate=inf: Input should be a finite number"),
        ("collective_timeout_s=99999999999999", r"collective_timeout_s=99999999999999: Input should be less than"),
        ("lease_timeout_s=9999999999", r"lease_timeout_s=9999999999: Input should be less than"),
        ("guard.max_rollbacks=9999999999", r"guard\.max_rollbacks=9999999999: Input should be less than"),
        ("threads_per_worker=99999", r"threads_per_worker=99999: Input should be less than"),
        ("model.max_positions=99999", r"model\.max_positions=99999: Input should be less than"),
        ("deepspeed={fp16: {enabled: true}}", r"deepspeed\.fp16\.enabled: has its own field.*set precision"),
        ("deepspeed={train_batch_size: 7}", r"deepspeed\.train_batch_size: has its own field.*set batch\.\*"),
        ("min_workers=2", r"min_workers=2 exceeds workers=1; lower it"),
        ("start_timeout_s=0", r"start_timeout_s=0: Input should be greater"),
        ("model={output_bias: unigram, initialize_from: x}", r"would be overwritten by model\.initialize_from"),
        (
            "model={initial_weights: scaled, initialize_from: x}",
            r"initial_weights=scaled would be overwritten by model\.initialize_from",
        ),
    ],
)
def test_trainer_refusals(override: str, message: str) -> None:
    """DeepSpeed#490, #4187, #4451: LAMB with norms over flattened partitions; it is not offered, rather than wrong."""
    with pytest.raises(ConfigError, match=message):
        load_trainer(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("max_steps=ten", r"^command line: max_steps='ten': Input should be a valid integer"),
        ("model={size: huge}", r"^command line: model\.size='huge'"),
        ("model.size=tini", r"^command line: model\.size='tini'"),
        ("batch.tokens=100", r"^command line: batch: give exactly one of batch\.pairs and batch\.tokens$"),
        ("workers=5", r"^command line: workers=5 exceeds batch\.lanes=4"),
        ("precision=fp17", r"^command line: precision='fp17': .*; {file}: evaluation\.max_pairs=0: "),
    ],
)
def test_a_fault_of_the_command_line_is_not_blamed_on_the_file(tmp_path: Path, override: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    held_out = "evaluation: {max_pairs: 0}\n" if "{file}" in message else ""
    file.write_text(f"data: set\noutput: out\nmax_steps: 10\nbatch: {{pairs: 8, lanes: 4}}\n{held_out}")
    with pytest.raises(ConfigError, match=message.replace("{file}", str(file))):
        load_settings(TrainerConfig, file=file, overrides=[override])


def test_a_fault_of_the_file_is_not_blamed_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("data: set\noutput: out\nmax_steps: ten\nbatch: {pairs: 8}\n")
    with pytest.raises(ConfigError, match=rf"^{file}: max_steps='ten': Input should be a valid integer"):
        load_settings(TrainerConfig, file=file, overrides=["output=elsewhere"])


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("learning_rate=1e-4", "'optimizer.learning_rate'"),
        ("lanes=4", "'batch.lanes'"),
        ("optimizer.warmup_steps=4", "'batch.warmup_steps' or 'schedule.warmup_steps'"),
        ("every_steps=4", "'checkpoint.every_steps' or 'evaluation.every_steps' or 'logging.every_steps'"),
    ],
)
def test_a_key_of_another_section_is_found(override: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"; did you mean {meant}\?$"):
        load_trainer(override)


def test_an_override_into_a_list_that_is_not_there_is_told_how_to_give_it() -> None:
    remedy = (
        r"the config has no list 'phases'; write it in the file, or give all of it, as in phases='\[\{max_steps: 5\}\]'"
    )
    with pytest.raises(ConfigError, match=rf"^override 'phases\.0\.max_steps=5': {remedy}$"):
        load_trainer("phases.0.max_steps=5")
    assert load_trainer("phases=[{max_steps: 10}]").phases[0].max_steps == 10


def test_trainer_refuses_workers_without_lanes_and_exact_pairs_without_pairs() -> None:
    with pytest.raises(ConfigError, match=r"workers=5 exceeds batch\.lanes=4"):
        load_trainer("workers=5", "batch.lanes=4")
    with pytest.raises(
        ConfigError, match=r"min_workers=1 is for launcher=ray; launcher=processes always starts all work"
    ):
        load_trainer("min_workers=1", "launcher=processes")
    with pytest.raises(ConfigError, match=r"ingest\.skip_corrupt and batch\.exact_pairs exclude each other"):
        load_trainer("ingest.skip_corrupt=true", "batch.exact_pairs=true")
    with pytest.raises(ConfigError, match=r"batch\.exact_pairs needs batch\.pairs"):
        load_settings(
            TrainerConfig,
            overrides=["output=o", "data=d", "max_steps=2", "batch.tokens=9", "batch.exact_pairs=true"],
        )


def test_paths_expand_the_home_folder_and_are_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_path("~/set", key="data") == "/home/me/set"
    assert expand_path("~no such user/set", key="data") == "~no such user/set"
    for value in ("", "a\0b"):
        with pytest.raises(ConfigError, match=r"^data=.*: not a path"):
            expand_path(value, key="data")


def test_paths_may_be_urls_of_stores() -> None:
    assert expand_path("s3://b/set/", key="data") == "s3://b/set"
    assert expand_path("gs://b", key="data") == "gs://b"
    assert expand_path("file:///a%20b/set", key="data") == "/a b/set"
    with pytest.raises(ConfigError, match=r"^output=s3://b/run: object stores are not supported here; give a local"):
        expand_path("s3://b/run", key="output", local_only=True)
    with pytest.raises(ConfigError, match=r"^data: hdfs://\.\.\.: this kind of store is not supported"):
        expand_path("hdfs://host/set", key="data")
    with pytest.raises(ConfigError, match=r"^data: s3://\.\.\.: no valid bucket name") as caught:
        expand_path("s3://key:secret@b/set", key="data")
    assert "secret" not in str(caught.value)


def test_missing_required_keys_are_all_named() -> None:
    with pytest.raises(ConfigError, match=r"'data' is required.*'output' is required.*'batch' is required"):
        load_settings(TrainerConfig)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- a\n", "must hold a mapping of settings, found list"),
        (b"a: [1\n", r"line 2, column 1: not valid YAML"),
        (b"seed: 1\nseed: 2\n", r"line 2, column 1: not valid YAML: key 'seed' appears twice"),
        (
            b"a: &a {x: 1}\nb: {<<: *a}\n",
            r"line 2, column 5: not valid YAML: merge keys \('<<'\) are not supported; write the keys",
        ),
        (b"? [1]\n: 2\n", r"line 1, column 3: not valid YAML: a key is a list or mapping"),
        (b"seed: 2001-13-01\n", r"not valid YAML: month must be in 1\.\.12"),
        (b"seed: " + b"9" * 5000, r"not valid YAML: Exceeds the limit"),
        (b"seed: " + b"[" * 5000, r"not valid YAML: lists or mappings are nested too deeply; nest less"),
        (b"\xff\xfe\x00", "cannot be read as UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(PipelineConfig, file=file)
    assert str(file) in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config file"):
        load_settings(PipelineConfig, file=tmp_path / "none.yaml")


def test_command_line() -> None:
    words = ["--config", "c.yaml", "a.b=1", "--dry-run", "--", "--runner=X"]
    assert split_arguments(words, program="run.py") == Arguments("c.yaml", ("a.b=1",), ("--dry-run",), ("--runner=X",))
    assert split_arguments(["-h", "--config=d.yaml"], program="p").flags == ("--help",)
    with pytest.raises(ConfigError, match="--config needs a file"):
        split_arguments(["--config"], program="p")
    with pytest.raises(ConfigError, match="'word' is neither"):
        split_arguments(["word"], program="p")


def test_unknown_flags_name_the_nearest() -> None:
    refuse_flags(["--help", "--dry-run"], program="p", known=["--dry-run"])
    with pytest.raises(ConfigError, match=r"unknown option --conifg; did you mean --config\?"):
        refuse_flags(["--conifg"], program="p")
    with pytest.raises(ConfigError, match="see p --help"):
        refuse_flags(["--zzz"], program="p")
    refuse_flags(["--price=3"], program="p", known=["--dry-run", "--price="])
    with pytest.raises(ConfigError, match=r"p: --dry-run=1: --dry-run takes no value; give --dry-run alone"):
        refuse_flags(["--dry-run=1"], program="p", known=["--dry-run", "--price="])


@pytest.mark.parametrize("cls", [PipelineConfig, TrainerConfig])
def test_help_explains_every_field(cls: type[PipelineConfig] | type[TrainerConfig]) -> None:
    for line in describe(cls).splitlines():
        assert line.partition(": ")[2].strip(), f"no help text: {line}"


def test_workers_output_and_paths_do_not_shape_the_data() -> None:
    one = load_pipeline("workers=1")
    other = load_settings(PipelineConfig, overrides=["output=b", "sources=[{kind: books, path: /c/a.txt}]"])
    assert one.data_tree() == other.data_tree()
    assert one.data_tree() != load_pipeline("seed=1").data_tree()


def test_default_predictions_follow_the_length() -> None:
    assert load_pipeline("max_seq_length=128").predictions == 20
    assert load_pipeline("max_seq_length=512").predictions == 77


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: &a [" + ",".join("x" * 9) + "]\n" + "".join(
            f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
        ), "aliases .* stand for"),
        ("a: &a " + "x" * 60_000 + "\nb: [" + ",".join(["*a"] * 20) + "]\n", "aliases .* stand for"),
        ("a: &a [*a]\n", "an alias stands inside what it stands for"),
        ("a: &a {b: {c: *a}}\n", "an alias stands inside what it stands for"),
    ],
)  # fmt: skip
def test_aliases_that_explode_are_refused(text: str, fault: str) -> None:
    """A billion laughs, a long text many times, and a list in itself."""
    with pytest.raises(ConfigError, match=f"x line 1, column 1.*{fault}|x line 1.*{fault}"):
        parse_yaml(text, origin="x")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: !!bool maybe\n", "a value does not fit its tag"),
        ("a: !!timestamp today\n", "a value does not fit its tag"),
        ("a: !!int many\n", "invalid literal"),
        ("a: 0x" + "f" * 100_000 + "\n", "a number of more than 14,000 bits"),
        ("a: " + "9" * 5000 + "\n", "Exceeds the limit"),
    ],
)
def test_values_that_do_not_fit_are_refused(text: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"^x.*: not valid YAML: {fault}"):
        parse_yaml(text, origin="x")


def test_large_numbers_are_read() -> None:
    assert parse_yaml("[18446744073709551616, -0x7f]", origin="x") == [2**64, -127]


def test_aliases_of_little_text_are_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: *a\n", origin="x") == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}
    long = "x" * 2_000_000
    assert parse_yaml(f"a: {long}\n", origin="x") == {"a": long}
