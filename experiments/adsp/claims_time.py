"""The claims about time: who waits, how soon a loss is reached, what is predicted."""

from __future__ import annotations

CLAIMS = ()
