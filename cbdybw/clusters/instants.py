"""The order of what happens at one instant of the virtual clock: ends of computations and data,
then control messages, then what waits for both; each in the order caused.
"""

DATA, CONTROL, LATE = 0, 1 << 60, 1 << 61
"""Added to an event's number, they are its place in its instant."""
