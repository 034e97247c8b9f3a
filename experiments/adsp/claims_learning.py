"""The claims about learning: convergence, equal commits, the best commit rate."""

from __future__ import annotations

CLAIMS = ()
