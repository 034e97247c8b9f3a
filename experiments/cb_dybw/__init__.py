"""Every experiment of cb-DyBW (arXiv 2102.06280): cells, figures, verdicts.

`python -m experiments.reproduce --paper=cb_dybw` runs them. `FIGURES` maps each group of cells to
the module whose `draw(rows)` gives its figures: file name → matplotlib figure; `rows` are those of
the group, as `experiments.rows` describes them.
"""

import importlib
from types import ModuleType

_MODULES = {
    "learning": "learning",
    "laws": "laws",
    "speedup": "speedup",
    "topology": "topology",
    "mpi": "prediction",
    "rates": "rate_search",
}


def __getattr__(name: str) -> dict[str, ModuleType]:
    """Import the modules when FIGURES is asked for: a sweep's processes need none of them, and
    Python warns when one that the package has imported is run as a script."""
    if name != "FIGURES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return {g: importlib.import_module(f"{__name__}.{m}") for g, m in _MODULES.items()}
