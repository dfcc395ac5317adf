"""Runs a stage as a job on a Ray cluster: ``RAY_ADDRESS=http://head:8265 dvc repro``.

DVC stays on the user's machine. `tune`, `train` and `evaluate` upload their inputs to storage, submit themselves to the
cluster's job server and follow the job. On the cluster, the same command finds ``MNVI_INPUTS`` in its environment,
fetches its inputs, works as it would anywhere, and uploads its outputs. The user's side then fetches them into DVC's
outputs.

    submitting.py  the user's side: starts one job per stage and settings, or attaches to one that is running
    everything.py  the user's side for all cells at a time: ``python -m pipeline.submission``
    follow.py      the job's log, Ctrl-C and the job's end
    server.py      the cluster's job server
    package.py     the code and settings to upload
    inside.py      the job's side
"""

from pipeline.submission.inside import deliver, entered
from pipeline.submission.submitting import submit, wanted

__all__ = ["deliver", "entered", "submit", "wanted"]
