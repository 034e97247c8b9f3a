"""Every experiment of SCAR (arXiv 1810.07354): cells, figures, verdicts.

`python -m experiments.reproduce --paper=scar` runs them.
"""

FIGURES = {
    "recovery": "scar.recovery",
    "bound": "scar.bound",
    "overhead": "scar.timing",
    "real": "scar.real",
    "consensus": "scar.consensus",
}
"""Group of cells → the module that draws it (see `experiments.drawing.modules`)."""
