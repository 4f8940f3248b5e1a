"""The model card (README.md) of an exported model. The card states the model's use, results, data and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipeline.dataset import Manifest
from pipeline.markdown_text import code_block, code_span, escape_markdown
from pipeline.settings import parse_yaml
from pipeline.units import count_of
from trainer.config import TrainerConfig
from trainer.hf import architecture_of

_SHOWN_SETTINGS = ("model", "batch", "optimizer", "schedule")


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
) -> str:
    """Return the text of the model card, which depends only on the arguments.

    `manifest` and `data_card` (the text of README.md) belong to the data set of the phase (part of the run) with index
    `phase`. Others may have written them, so their texts are escaped. `training` and `evaluation` are the run's last
    records of metrics and of held-out evaluation up to `step`, or None. `pair_heads` says whether the model has pooler
    and next-sentence head. Raises ValueError naming `card_origin`, the file of the data card, if its front matter is
    damaged.
    """
    licences = _licences(data_card, origin=card_origin)
    sources = _sources(manifest)
    use = "text-generation" if config.model.is_causal else "fill-mask"
    front: dict[str, Any] = {
        "language": sorted({language for _, _, language in sources}),
        **({"license": licences[0] if len(licences) == 1 else list(licences)} if licences else {}),
        "library_name": "transformers",
        "pipeline_tag": use,
        "tags": ["bert", use, "pretraining"],
    }
    architecture = architecture_of(config.model, pair_heads=pair_heads)
    begun = "from given weights (see below)" if _start(config) else "from scratch"
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
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
        'tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")',
        f'model = {architecture}.from_pretrained("THIS_FOLDER")',
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
        *_results(training, evaluation, kind="next-token" if config.model.is_causal else "masked-LM"),
        "",
        "## Data",
        "",
        *_phases(config, phase=phase),
        *_data(manifest, sources=sources),
        "",
        "## Training",
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
    drawn = ("masking",) if config.masking.source == "drawn" else ()  # otherwise the data set's masks were used
    tree = config.model_dump(mode="json", include={*_SHOWN_SETTINGS, *drawn})
    if config.phases:
        tree["phases"] = [
            phase.model_dump(mode="json", exclude={"data"}, exclude_defaults=True) for phase in config.phases
        ]
    return {**tree, "max_steps": config.max_steps, "precision": config.precision, "seed": config.seed}


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
    parts: Sequence[str] = card.split("---\n", 2)
    if not card.startswith("---\n") or len(parts) < 3:
        return ()
    tree = parse_yaml(parts[1], origin=f"{origin}, front matter")
    found = (tree.get("license") if isinstance(tree, dict) else None) or ()
    licences = tuple(found) if isinstance(found, list) else (found,) if found else ()
    if not all(isinstance(licence, str) for licence in licences):
        raise ValueError(f"{origin}, front matter: license={str(found)[:80]}: not a text; name a licence, or none")
    return licences
