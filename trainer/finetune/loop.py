"""The steps of a fine-tuning, and the logits of a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from pipeline import draws
from pipeline.console import Say
from pipeline.storage import locate
from trainer.config import TrainerConfig
from trainer.finetune import rates
from trainer.finetune.batches import count_targets, draw_order, pack, slice_evenly
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.features import Feature
from trainer.finetune.heads import TaskModel, by_row, mean_loss
from trainer.finetune.predictions import Logits
from trainer.finetune.ranks import Ranks
from trainer.finetune.state import load_state, save_state
from trainer.finetune.step_log import open_log

_ALONE = Ranks()
PROGRESS_LINES = 20
"""Lines of a run that say its loss, besides those at the ends of epochs."""


def train(
    model: TaskModel, *, features: Sequence[Feature], config: FinetuneConfig, ranks: Ranks, say: Say,
    stop: Callable[[], bool],
) -> tuple[int, bool]:  # fmt: skip
    """Take all steps that are left; return how many are done, and whether these are all: `stop` may come first.

    Rank 0 writes the state after each epoch, every config.state_steps and at a stop, and one line a step to
    metrics.jsonl and the tracker.
    """
    size = config.batch_size
    steps_an_epoch = math.ceil(len(features) / size)
    num_steps = max(1, math.ceil(config.epochs * steps_an_epoch))
    schedule = config.pretraining(num_steps=num_steps, model=model.bert.config)
    rates.freeze(model, config=config.optimizer)
    optimizer = rates.build_optimizer(model, config=config.optimizer)
    output = locate(config.output)
    every = math.ceil(num_steps / PROGRESS_LINES)
    done = load_state(output, model=model, optimizer=optimizer, config=config)
    if done:
        say(f"going on from step {done} of {num_steps}")
    model.train()
    order: list[int] = []
    losses: list[float] = []
    with open_log(schedule, resume_step=done, here=ranks.rank == 0) as log:
        for step in range(done + 1, num_steps + 1):
            epoch, place = divmod(step - 1, steps_an_epoch)
            if not order or place == 0:
                order = draw_order(len(features), seed=config.seed, epoch=epoch)
            chosen = [features[number] for number in order[place * size : (place + 1) * size]]
            loss, stopped = take_step(model, features=chosen, optimizer=optimizer, step=step, config=config,
                                      schedule=schedule, ranks=ranks, stop=stop())  # fmt: skip
            losses.append(loss)
            stopped = stopped and step < num_steps
            log({"step": step, "epoch": epoch, "loss": loss, "learning_rate": optimizer.param_groups[0]["lr"]})
            whole = place + 1 == steps_an_epoch or step == num_steps
            if whole or stopped or step % every == 0:
                say(f"step {step} of {num_steps}: loss {math.fsum(losses) / len(losses):.4f}")
                losses = []
            if ranks.rank == 0 and (whole or stopped or (config.state_steps and step % config.state_steps == 0)):
                save_state(output, step=step, model=model, optimizer=optimizer, config=config)
            if stopped:
                return step, False
    return num_steps, True


def take_step(
    model: TaskModel, *, features: Sequence[Feature], optimizer: torch.optim.AdamW, step: int, config: FinetuneConfig,
    schedule: TrainerConfig, ranks: Ranks, stop: bool = False,
) -> tuple[float, bool]:  # fmt: skip
    """Make one update by the features of all ranks.

    Return the loss before the update, and whether any rank was asked to stop. ValueError if the loss is not finite.
    """
    own = ranks.share(features)
    parts = () if ranks.world_size == 1 else (ranks.rank,)
    torch.manual_seed(draws.key(config.seed, "finetune", "dropout", step, *parts) >> 1)
    rates.set_rates(optimizer, step=step, config=schedule)
    device = model.head.weight.device
    optimizer.zero_grad(set_to_none=True)
    count, value = count_targets(own, kind=model.kind), 0.0
    if count:
        batch = pack(own, kind=model.kind, device=device)
        share = count / count_targets(features, kind=model.kind)
        loss = mean_loss(model(batch), kind=model.kind, batch=batch) * share
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ranks.sum_gradients(learning)
    if config.optimizer.clip_norm > 0.0:
        torch.nn.utils.clip_grad_norm_(learning, config.optimizer.clip_norm)
    optimizer.step()
    value, stopped = ranks.sum([value, float(stop)], device=device)
    if not math.isfinite(value):
        raise ValueError(f"step {step}: the loss is {value}; lower optimizer.learning_rate")
    return value, stopped > 0.0


@torch.no_grad()
def compute_logits(
    model: TaskModel, *, features: Sequence[Feature], batch_size: int, ranks: Ranks = _ALONE
) -> list[Logits]:
    """Return the logits of every feature, on every rank: [classes], or [tokens, classes] if the head is on tokens."""
    model.eval()
    device = model.head.weight.device
    found: list[Logits] = []
    for part in slice_evenly(ranks.share(features), size=batch_size):
        batch = pack(part, kind=model.kind, device=device)
        logits = model(batch)
        if model.kind in ("tagging", "qa"):
            rows = by_row(logits.float(), batch=batch).cpu().numpy()
            found.extend(row[: len(feature.rows[0].ids)] for row, feature in zip(rows, part, strict=True))
        else:
            found.extend(logits.float().cpu().numpy())
    return ranks.join(found)
