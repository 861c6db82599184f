"""What the emulated engine tells Prometheus of itself. Beside it stand three gauges of vLLM's, which pickers read."""

from __future__ import annotations

from cardwise.series import Series, counter, gauge

READY = gauge("cardwise_engine_ready", "1 while it answers.", "model_name")
STARTS = counter("cardwise_engine_starts", "Times that it was started.", "model_name")
REQUESTS = counter("cardwise_engine_requests", "Requests that ran.", "model_name")
ROWS = counter("cardwise_engine_rows", "Rows that ran.", "model_name")
WORK = counter("cardwise_engine_work_seconds", "Card time of what has begun, each as if alone there.", "model_name")
SERIES: tuple[Series, ...] = (READY, STARTS, REQUESTS, ROWS, WORK)
