"""Shapes of published models beside the sizes: settings, and (layers, heads, width, feed-forward)."""

from __future__ import annotations

SHAPES: dict[str, tuple[dict[str, int], tuple[int, int, int, int]]] = {
    "DistilBERT": ({"layers": 6}, (6, 12, 768, 3072)),
    "TinyBERT-4": (
        {"layers": 4, "heads": 12, "hidden_size": 312, "feed_forward_size": 1200},
        (4, 12, 312, 1200),
    ),
    "Table 6, row 1": ({"layers": 3}, (3, 12, 768, 3072)),
    "Table 6, row 2": ({"layers": 6, "heads": 3}, (6, 3, 768, 3072)),
    "Table 6, row 5": ({"layers": 12, "heads": 16, "hidden_size": 1024}, (12, 16, 1024, 4096)),
}
