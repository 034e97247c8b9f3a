"""Every experiment of cb-DyBW (arXiv 2102.06280): cells, figures, verdicts.

`python -m experiments.reproduce --paper=cb_dybw` runs them.
"""

FIGURES = {
    "learning": "cb_dybw.learning",
    "laws": "cb_dybw.laws",
    "speedup": "cb_dybw.speedup",
    "topology": "cb_dybw.topology",
    "mpi": "cb_dybw.prediction",
    "rates": "cb_dybw.rate_search",
}
"""Group of cells → the module that draws it (see `experiments.drawing.modules`)."""
