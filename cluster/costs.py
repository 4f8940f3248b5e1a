"""Says what clusters cost: at most per hour, and for BERT-Large by the published recipe: `python -m cluster.costs`.

The costs are extrapolated from one H200 (bench/trainer.md). Communication between nodes was not measured, so hours and
prices are lower bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cluster.render import (
    VALUES,
    CloudValues,
    ClusterValues,
    Group,
    SkyValues,
    describe_prices,
    greatest_prices,
    read_values,
)

TOKENS = 42.6e9
"""The number of tokens on which the recipe (trainer/configs/bert_large_two_phases.yaml) trains. A comment in that file
shows the calculation."""
TOKENS_PER_SECOND = 232_474
"""The number of tokens a second, without padding, on which one H200 trains BERT-Large in bf16, compiled, with rows as
long as those from Wikipedia."""


def hours_of(group: Group) -> float:
    """Return the hours that training BERT-Large by the published recipe takes on the group if all its nodes
    (`max_nodes`) run."""
    return TOKENS / (TOKENS_PER_SECOND * group.gpus * group.max_nodes) / 3600


def describe_costs(values: ClusterValues) -> Iterator[str]:
    """Yield lines that say what the cluster costs at most per hour, and without work. Values of kinds without prices
    (own hosts, Slurm, Kubernetes) yield nothing."""
    if isinstance(values, CloudValues):
        prices = greatest_prices(values, spot=False)
        yield f"at most {describe_prices(prices)}, without work ${prices[0].price:,.2f}"
        if values.gpu.spot_price_per_hour is not None:
            yield f"if all GPU nodes are spot nodes: at most {describe_prices(greatest_prices(values, spot=True))}"
    elif isinstance(values, SkyValues):
        node = values.max_price_per_hour / values.gpu.max_nodes
        yield f"at most ${values.max_price_per_hour:,.2f} an hour ({values.gpu.max_nodes} nodes of up to ${node:,.2f})"


def table(folder: Path = VALUES) -> Iterator[str]:
    """Yield the lines of a Markdown table of costs from the values files in `folder`."""
    yield "| cluster | nodes | GPUs | hours | on demand | spot |"
    yield "|---|---|---|---|---|---|"
    for kind in ("aws", "gcp"):
        gpu = read_values(kind, folder=folder).gpu  # type: ignore[attr-defined]
        hours = hours_of(gpu)
        prices = [
            "-" if price is None else f"${hours * gpu.max_nodes * price:,.0f}"
            for price in (gpu.price_per_hour, gpu.spot_price_per_hour)
        ]
        nodes = f"{gpu.max_nodes} x {gpu.machine}"
        yield f"| {kind} | {nodes} | {gpu.gpus * gpu.max_nodes} | {hours:.1f} | {prices[0]} | {prices[1]} |"


if __name__ == "__main__":
    print("\n".join(table()))
    sys.exit(0)
