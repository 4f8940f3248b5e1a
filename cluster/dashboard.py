"""Writes the Grafana dashboard of runs and builds, cluster/grafana/cloze.json: `python -m cluster.dashboard`.

The queries of the dashboard name metrics that the trainer and the pipeline export. A test compares these names with the
metrics that a running Ray serves.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cluster import CLUSTER

FILE = CLUSTER / "grafana" / "cloze.json"
RUN = '{run=~"$run"}'
PANELS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("Tokens a second", "short", [(f"ray_cloze_tokens_per_second{RUN}", "{{run}}")]),
    ("Model FLOPs, share of peak", "percentunit", [(f"ray_cloze_mfu{RUN}", "{{run}}")]),
    (
        "Loss, nats",
        "none",
        [
            (f"ray_cloze_loss{RUN}", "{{run}} training"),
            (f"ray_cloze_held_out_mlm_loss{RUN}", "{{run}} held out, masked-LM"),
            (f"ray_cloze_held_out_unigram_loss{RUN}", "{{run}} word frequencies"),
        ],
    ),
    ("Gradient norm before clipping", "none", [(f"ray_cloze_grad_norm{RUN}", "{{run}}")]),
    (
        "Waiting for data, share of the step",
        "percentunit",
        [(f"ray_cloze_data_wait_s{RUN} / ray_cloze_step_s{RUN}", "{{run}}")],
    ),
    ("Pause for a checkpoint", "s", [(f"ray_cloze_checkpoint_pause_s{RUN}", "{{run}}")]),
    (
        "Skipped steps, lost rows, restarts",
        "short",
        [
            (f"sum by (run) (ray_cloze_skipped_steps_total{RUN})", "{{run}} skipped steps"),
            (f"sum by (run) (ray_cloze_lost_rows_total{RUN})", "{{run}} lost rows"),
            (f"sum by (run) (ray_cloze_restarts_total{RUN})", "{{run}} restarts"),
        ],
    ),
    ("Step", "short", [(f"ray_cloze_step{RUN}", "{{run}}")]),
    ("Documents read a second", "short", [("rate(ray_cloze_build_documents_total[1m])", "{{build}}")]),
    (
        "Documents left out",
        "short",
        [
            ("ray_cloze_build_drops_total", "{{build}} in reading"),
            ("ray_cloze_build_duplicates_total", "{{build}} duplicates"),
        ],
    ),
    ("Rows written a second", "short", [("rate(ray_cloze_build_rows_total[1m])", "{{build}}")]),
]
"""The panels of the dashboard, as tuples: the title, the unit, and a list of pairs (query, legend)."""
HEIGHT, WIDTH = 8, 12


def make_dashboard() -> dict[str, Any]:
    """Return the dashboard as JSON data in the form that Grafana imports."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = []
    for number, (title, unit, queries) in enumerate(PANELS):
        targets = [
            {"datasource": source, "expr": query, "legendFormat": legend, "refId": chr(ord("A") + place)}
            for place, (query, legend) in enumerate(queries)
        ]
        panels.append(
            {
                "id": number + 1,
                "type": "timeseries",
                "title": title,
                "datasource": source,
                "gridPos": {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % 2), "y": HEIGHT * (number // 2)},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "targets": targets,
            }
        )
    run = {
        "name": "run",
        "type": "query",
        "datasource": source,
        "query": "label_values(ray_cloze_step, run)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }
    return {
        "title": "Cloze",
        "uid": "cloze",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}, run]},
        "panels": panels,
    }


def main() -> int:
    """Write the dashboard to FILE. Return the exit status 0."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(make_dashboard(), indent=1) + "\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
