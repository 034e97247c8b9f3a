"""Every experiment of cb-DyBW (arXiv 2102.06280): cells, figures, verdicts.

`python -m experiments.reproduce --paper=cb_dybw` runs them.
"""

from types import ModuleType

FIGURES: dict[str, ModuleType] = {}
"""Group of cells → the module whose `draw(rows)` gives its figures: file name → matplotlib figure.

`rows`: those of the group, as `experiments.rows` describes them.
"""
