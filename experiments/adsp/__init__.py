"""Every experiment of ADSP (arXiv 1911.06949): cells, figures, verdicts.

`python -m experiments.reproduce --paper=adsp` runs them.
"""

FIGURES = {
    "split": "adsp.split",
    "momentum": "adsp.momentum",
    "race": "adsp.race",
    "heterogeneity": "adsp.sweeps",
    "scale": "adsp.sweeps",
    "delay": "adsp.sweeps",
    "variants": "adsp.variants",
    "graph": "adsp.graph",
    "mpi": "adsp.mpi",
    "links": "adsp.mpi",
    "rates": "adsp.rate_search",
}
"""Group of cells → the module that draws it (see `experiments.drawing.modules`)."""
