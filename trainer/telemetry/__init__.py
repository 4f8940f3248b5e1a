"""TODO trainer/telemetry."""
