"""The units of the project, in one place, so that a name's suffix means one thing everywhere.

========  ==============================================================================
suffix    meaning
========  ==============================================================================
_mib      mebibytes (2**20 bytes) of memory, whole numbers
_milli    thousandths: of one CPU core (Kubernetes), of one card's compute or memory
_pct      percent of one card's compute, 1-100, what users write; 1 % = 10 milli
_share    a ratio in [0, 1]
_score    a factor of a decision in [0, 1]; more is better
_s, _us   seconds, microseconds
========  ==============================================================================
"""

from __future__ import annotations

MILLI_PER_CARD = 1000
"""One whole card's compute, or all of its memory, in thousandths."""

MILLI_PER_PCT = 10
"""Users write percent (SPEC A1); the core counts thousandths, for traces have them (Kubernetes does so for CPU)."""
