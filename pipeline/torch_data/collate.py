"""Batches of rows: padded, or packed one behind another into long rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.settings import ConfigError
from pipeline.torch_data.items import NO_LABEL, Item


class Collator:
    """Makes a batch of rows, as `collate_fn` of a loader or `data_collator` of transformers' Trainer."""

    def __init__(self, *, pad: int, multiple_of: int = 1, pack_to: int | None = None) -> None:
        """`pad` is the id of [PAD] (manifest.special.pad). Lengths are rounded up to `multiple_of`.

        With `pack_to`, rows are laid one behind another, the next one into the first row with room for it, up to so
        many tokens.
        """
        if multiple_of < 1 or (pack_to is not None and pack_to < 1):
            raise ConfigError(f"multiple_of={multiple_of}, pack_to={pack_to}: give positive numbers")
        self.pad, self.multiple_of, self.pack_to = pad, multiple_of, pack_to

    def __call__(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Return a batch of int64 tensors.

        Padded: input_ids, token_type_ids, attention_mask (1 for tokens, 0 for padding) and labels, all [rows, longest],
        and next_sentence_label [rows] if the items have one. Packed: no next_sentence_label, since a packed row has
        several [CLS]; position_ids, which begin at 0 in each row; and attention_mask bool [packed rows, 1, L, L], in
        which a token sees its own row alone. Raises ConfigError if a row exceeds `pack_to`.
        """
        if self.pack_to is not None:
            return self._pack(items, length=self.pack_to)
        length = self._round_up(max(item["input_ids"].numel() for item in items))
        batch = {
            name: self._fill(items, name=name, length=length) for name in ("input_ids", "token_type_ids", "labels")
        }
        lengths = torch.tensor([item["input_ids"].numel() for item in items])
        batch["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
        if "next_sentence_label" in items[0]:
            batch["next_sentence_label"] = torch.stack([item["next_sentence_label"] for item in items])
        return batch

    def _round_up(self, length: int) -> int:
        return -(-length // self.multiple_of) * self.multiple_of

    def _fill(self, items: Sequence[Item], *, name: str, length: int) -> Tensor:
        value = {"input_ids": self.pad, "labels": NO_LABEL}.get(name, 0)
        filled = torch.full((len(items), length), value)
        for row, item in zip(filled, items, strict=True):
            row[: item[name].numel()] = item[name]
        return filled

    def _pack(self, items: Sequence[Item], *, length: int) -> dict[str, Tensor]:
        packs: list[list[Item]] = []
        room: list[int] = []
        for item in items:
            size = item["input_ids"].numel()
            if size > length:
                raise ConfigError(f"pack_to={length}: a row has {size} tokens; raise it to the set's max_seq_length")
            place = next((number for number, left in enumerate(room) if left >= size), len(packs))
            if place == len(packs):
                packs.append([])
                room.append(length)
            packs[place].append(item)
            room[place] -= size
        joined = []
        for pack in packs:
            sizes = torch.tensor([item["input_ids"].numel() for item in pack])
            row = {name: torch.cat([item[name] for item in pack]) for name in ("input_ids", "token_type_ids", "labels")}
            row["position_ids"] = torch.cat([torch.arange(int(size)) for size in sizes])
            row["number"] = torch.repeat_interleave(torch.arange(1, len(pack) + 1), sizes)
            joined.append(row)
        longest = self._round_up(max(row["input_ids"].numel() for row in joined))
        names = ("input_ids", "token_type_ids", "labels", "position_ids", "number")
        batch = {name: self._fill(joined, name=name, length=longest) for name in names}
        number = batch.pop("number")  # 0 is padding, which sees padding alone
        batch["attention_mask"] = number[:, None, :, None] == number[:, None, None, :]
        return batch
