"""Reports of a run: metrics, trackers, FLOPs, loss curve, log files.

Import `prometheus` only when needed, because it loads Ray.
"""

from trainer.telemetry.curve import CURVE_NAME, draw_curve, render_curve, smooth
from trainer.telemetry.evaluation import Evaluation, SourceLoss
from trainer.telemetry.flops import PEAK_TFLOPS, count_flops, find_peak
from trainer.telemetry.log_files import RunFiles
from trainer.telemetry.metrics import (
    EVALUATIONS_NAME,
    METRICS_NAME,
    JsonLines,
    RunLog,
    StepMetrics,
    read_json_lines,
    read_last_lines,
    read_thinned,
    row_ids,
)
from trainer.telemetry.trackers import flatten, open_tracker
