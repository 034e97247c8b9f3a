"""What survives a failure: running checkpoints, recovery, and what a failure costs.

Source: Qiao, Aragam, Zhang, Xing, "Fault Tolerance in Iterative-Convergent Machine Learning"
(SCAR), arXiv 1810.07354. Usable alone: numpy and files, no TensorFlow, no MPI.
"""
