"""A fault campaign: `python -m tools.faults`, or `make faults`.

room.py        its own namespaces, in which it can cut, fill and kill without harm
study.py       the small study that it disturbs
server.py      its MLflow server
scene.py       what faults strike
injections.py  the faults, those of a training on photographs in photo_faults.py
campaign.py    runs the studies, one after the other
outcome.py     the outcome of a study, and the differences between two
traces.py      what a study must not leave behind
report.py      faults.json and docs/faults.md
"""
