"""A stage as a job of a Ray cluster: ``RAY_ADDRESS=http://head:8265 dvc repro``.

DVC stays where it was started. `tune` and `train` put what they read into storage, submit themselves to the cluster's
job server and follow the job; there the same command finds ``MNVI_INPUTS`` in its environment, fetches what it reads,
works as everywhere, and puts what it made into storage, from where it comes into DVC's outputs.

    submit.py   the user's side: one job per stage and settings, attached to if it runs already
    follow.py   its log, Ctrl-C and its end
    package.py  what is uploaded
    inside.py   the job's side
"""

from pipeline.submission.inside import deliver, entered
from pipeline.submission.submit import submit, wanted

__all__ = ["deliver", "entered", "submit", "wanted"]
