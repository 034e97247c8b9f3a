"""No test is judged by its time: machines are shared, and some code is compiled at first."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
