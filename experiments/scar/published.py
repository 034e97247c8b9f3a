"""Numbers of the SCAR paper (arXiv 1810.07354), for tables and figures that show them beside ours.

Marks: [paper] stated in the paper; [recalled] from memory of it, not checked against its text;
[derived] follows from what is stated.
"""

HEADLINE = (0.78, 0.95)
"""Iteration cost saved by SCAR where some parameters are lost [paper]; that half of them are, and
r = 1/8, is [recalled]."""

PARTIAL = {0.25: (0.59, 0.89), 0.5: (0.31, 0.62), 0.75: (0.12, 0.42)}
"""Share lost → iteration cost saved by partial recovery alone [recalled]."""

SOONER = 3
"""Iterations by which LDA on ClueWeb12 is sooner at its likelihood with SCAR, 6 minutes [paper]."""

OVERHEAD = 13 / (4 * 120)
"""Of the time of iterations: 13 s in 4 of them [paper], each of about 2 minutes [derived]."""
