"""The shared folder and the scheduler of a cluster: set them up, and tell whether they are fit."""
