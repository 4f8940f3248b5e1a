"""The model card (README.md) of an exported model. The card states the model's use, results, data and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipeline.dataset import Manifest
from pipeline.front_matter import card_languages, render_front_matter, split_front_matter
from pipeline.markdown_text import code_block, code_span, escape_markdown
from pipeline.settings import to_tree
from pipeline.units import count_of
from trainer.checkpoint import CheckpointState
from trainer.config import TrainerConfig, drop_idle_settings
from trainer.export.history import History
from trainer.export.task_scores import TaskReport, model_index, render_tasks
from trainer.hf import architecture_of
from trainer.telemetry import CURVE_NAME

_SHOWN_SETTINGS = ("model", "batch", "optimizer", "schedule")
_ALSO_SHOWN = ("max_steps", "precision", "seed")
_IF_CHANGED = ("max_hours", "zero_stage", "communication_data_type", "guard", "deterministic", "deepspeed")
"""Settings that decide the weights too, and are shown if they are not the default."""


def render_model_card(
    config: TrainerConfig,
    *,
    manifest: Manifest,
    data_card: str,
    card_origin: str = "README.md",
    step: int,
    phase: int = 0,
    pair_heads: bool = True,
    num_parameters: int,
    training: Mapping[str, Any] | None,
    evaluation: Mapping[str, Any] | None,
    history: History | None = None,
    state: CheckpointState | None = None,
    tasks: TaskReport | None = None,
    repository: str | None = None,
    revisions: Sequence[str] = (),
) -> str:
    """Return the text of the model card, which depends only on the arguments.

    `manifest` and `data_card` (the text of README.md) belong to the data set of the phase (part of the run) with index
    `phase`. Others may have written them, so their texts are escaped. `training` and `evaluation` are the run's last
    records of metrics and of held-out evaluation up to `step`, or None, and `history` all of them; `state` is the
    checkpoint's. `tasks` is what fine-tuning found of this checkpoint. `repository` (OWNER/NAME) is where the model is
    published, with other steps as `revisions`. `pair_heads` says whether the model has pooler and next-sentence head.
    Raises ValueError naming `card_origin`, the file of the data card, if its front matter is
    damaged.
    """
    licences = _licences(data_card, origin=card_origin)
    sources = _sources(manifest)
    use = "text-generation" if config.model.is_causal else "fill-mask"
    front: dict[str, Any] = {
        "language": card_languages(language for _, _, language in sources),
        **({"license": licences[0] if len(licences) == 1 else list(licences)} if licences else {}),
        "library_name": "transformers",
        "pipeline_tag": use,
        "tags": ["bert", use, "pretraining"],
        **({"model-index": model_index(tasks, name=_name(config, repository=repository))} if tasks else {}),
    }
    kind = "next-token" if config.model.is_causal else "masked-LM"
    shown = repository or "THIS_FOLDER"
    architecture = architecture_of(config.model, pair_heads=pair_heads)
    given = "".join(f" phases.{index}.data=SET" for index in range(len(config.phases)))
    begun = "from given weights (see below)" if _start(config) else "from scratch"
    lines = [
        render_front_matter(front).rstrip(),
        "",
        f"# BERT ({config.model.name}), pretrained with Cloze",
        "",
        f"{num_parameters:,} parameters: {config.model.num_layers} layers, {config.model.num_heads} heads, width "
        f"{config.model.width}, {config.model.max_positions} positions, vocabulary {manifest.vocabulary_size:,}, "
        f"{config.model.norm}-LayerNorm. Pretrained {begun} on "
        + ("next words, from left to right" if config.model.is_causal else "masked words")
        + (
            ""
            if manifest.next_sentence == "none" or config.model.objective != "masked_next_sentence"
            else f" and next sentences ({escape_markdown(manifest.next_sentence)})"
        )
        + f", {step:,} steps.",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {architecture}",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{shown}")',
        f'model = {architecture}.from_pretrained("{shown}")',
        "```",
        "",
        "`AutoModel` and `AutoModelForMaskedLM` load it too, without the heads that they do not have."
        if pair_heads
        else "It was not trained on next sentences and has no pooler (use `add_pooling_layer=False` with `AutoModel`).",
        "",
        *_causal(config),
        *_start(config),
        "## Results",
        "",
        *_results(training, evaluation, kind=kind),
        "",
        *(_curves(history, kind=kind) if history is not None else ()),
        *(render_tasks(tasks) if tasks is not None else ()),
        *_revisions(revisions, repository=repository, architecture=architecture),
        "## Data",
        "",
        *_phases(config, phase=phase),
        *_data(manifest, sources=sources),
        "",
        "## Training",
        "",
        *(history.cost(state) if history is not None and state is not None else ()),
        "The same run again, with these settings as recipe.yaml (equal bits need the same data set, and "
        "the same versions and hardware):",
        "",
        *code_block(f"python trainer/run.py --config recipe.yaml data=SET output=RUN{given}", language="sh"),
        "",
        *code_block(yaml.safe_dump(_settings(config), sort_keys=False, allow_unicode=True).rstrip(), language="yaml"),
        "",
        "## Licence and limits",
        "",
        *_describe_licence(data_card, licences=licences),
        "The model was not reviewed for bias or factual errors: it reproduces what its training texts say.",
        "",
    ]
    return "\n".join(lines)


def _start(config: TrainerConfig) -> list[str]:
    if config.resume_from is not None:
        return [
            f"The run is a branch: it continues from the checkpoint {code_span(config.resume_from)} of another run.",
            "",
        ]
    if config.model.initialize_from is not None:
        weights = code_span(config.model.initialize_from)
        return [f"Training started from the weights of {weights}, not from random weights.", ""]
    return []


def _causal(config: TrainerConfig) -> list[str]:
    if not config.model.is_causal:
        return []
    return [
        "It reads from left to right (`is_decoder`: true): a token sees only itself and the tokens before it, so it "
        "is no fill-mask model, and its vector of [CLS] says nothing about the text. Its objective is that of GPT-1.",
        "",
    ]


def _results(
    training: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None, *, kind: str = "masked-LM"
) -> list[str]:
    rows = []
    for name, record in (("training, last step", training), ("held-out", evaluation)):
        if record is not None:
            values = [record.get(key) for key in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")]
            shown = " | ".join("" if value is None else f"{value:.4f}" for value in values)
            rows.append(f"| {name} | {record['step']:,} | {shown} |")
    if not rows:
        return ["The run recorded no results."]
    head = f"| | step | {kind} loss, nats | {kind} accuracy | next-sentence loss | next-sentence accuracy |"
    lines = [head, "|---|---:|---:|---:|---:|---:|", *rows]
    if evaluation is not None and evaluation.get("unigram_loss") is not None:
        lines += [
            "",
            f"For comparison: predicting by the training set's word frequencies alone has a held-out {kind} loss of "
            f"{evaluation['unigram_loss']:.4f} nats.",
        ]
    return lines


def _name(config: TrainerConfig, *, repository: str | None) -> str:
    return f"BERT {config.model.name}" if repository is None else repository.partition("/")[2]


def _curves(history: History, *, kind: str) -> list[str]:
    picture = [f"![Losses over steps]({CURVE_NAME})", ""] if history.training else []
    return [*picture, *history.table(kind=kind)]


def _revisions(revisions: Sequence[str], *, repository: str | None, architecture: str) -> list[str]:
    if not revisions:
        return []
    return [
        "## Revisions",
        "",
        "The steps of the run that were kept, each with a card of its own:",
        "",
        *(f"- `{revision}`" for revision in revisions),
        "",
        *code_block(
            f'model = {architecture}.from_pretrained("{repository}", revision="{revisions[0]}")', language="python"
        ),
        "",
    ]


def _phases(config: TrainerConfig, *, phase: int) -> list[str]:
    if len(config.phases) < 2:
        return []
    number = f"phase {phase + 1} of {len(config.phases)}"
    return [f"This is the data set of {number} (see Training), to which the checkpoint belongs.", ""]


def _data(manifest: Manifest, *, sources: Sequence[tuple[str, str, str]]) -> list[str]:
    lines = [
        f"{manifest.num_rows('train'):,} sentence pairs ({manifest.num_tokens('train'):,} tokens) of at most "
        f"{manifest.max_seq_length} tokens, {count_of(manifest.mask_sets, 'mask set')} each; "
        f"{manifest.num_rows('validation'):,} pairs of other documents held out. Data set `{manifest.hash}`, "
        f"vocabulary {code_span(manifest.vocabulary_hash)}.",
        "",
    ]
    for name, kind, language in sources:
        shown = f"{escape_markdown(name)}: " if name else ""
        lines.append(f"- {shown}{escape_markdown(kind)} ({escape_markdown(language)})")
    return lines


def _sources(manifest: Manifest) -> list[tuple[str, str, str]]:
    """Return (name or "", kind, language) of each source of a data set. Raises ValueError if the manifest's config,
    which the manifest stores unchecked, does not list them like this."""
    found = manifest.config.get("sources", ())
    if not isinstance(found, (list, tuple)) or not all(isinstance(source, Mapping) for source in found):
        raise ValueError("the data set's manifest: config.sources is not a list of sources; build the set again")
    sources = [(source.get("name") or "", source.get("kind"), source.get("language")) for source in found]
    if not all(isinstance(text, str) for source in sources for text in source):
        raise ValueError("the data set's manifest: config.sources has no texts as name, kind, language; build it again")
    return sources


def _settings(config: TrainerConfig) -> dict[str, Any]:
    """Return the settings that decide the weights, without the paths of data: a config for the same run."""
    tree = drop_idle_settings(to_tree(config), origin="the run's settings")
    recipe = {key: tree[key] for key in (*_SHOWN_SETTINGS, *_ALSO_SHOWN) if key in tree}
    if config.masking.source == "drawn":  # otherwise the data set's masks were used
        recipe["masking"] = tree["masking"]
    if config.phases:
        recipe["phases"] = [
            phase.model_dump(mode="json", exclude={"data"}, exclude_defaults=True) for phase in config.phases
        ]
    return recipe | config.model_dump(mode="json", include=set(_IF_CHANGED), exclude_defaults=True)


def _describe_licence(data_card: str, *, licences: Sequence[str]) -> list[str]:
    said = [line for line in data_card.splitlines() if "licence" in line.lower() or "license" in line.lower()]
    said = [escape_markdown(line) for line in said if not line.startswith(("license:", "#"))]
    if licences:
        shown = ", ".join(map(escape_markdown, licences))
        return [f"The data set's card names the licence {shown}.", *said, ""]
    return [*(said or ["The data set's card names no licence for its texts: ask its author."]), ""]


def _licences(card: str, *, origin: str) -> tuple[str, ...]:
    """Return the licences that the front matter of a data card names. Raises ValueError naming `origin`, the card's
    file, if the front matter is not valid YAML or names a licence that is not a text."""
    front, _ = split_front_matter(card, origin=origin)
    found = front.get("license") or ()
    licences = tuple(found) if isinstance(found, list) else (found,) if found else ()
    if not all(isinstance(licence, str) for licence in licences):
        raise ValueError(f"{origin}, front matter: license={str(found)[:80]}: not a text; name a licence, or none")
    return licences
