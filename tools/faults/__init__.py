"""A fault campaign: `python -m tools.faults`, or `make faults`.

room.py        namespaces of its own, in which it can cut, fill and kill without harm
study.py       the small study that is disturbed
server.py      its MLflow server
injections.py  the faults
campaign.py    studies, one after the other
outcome.py     what a study has come to, and how two differ
traces.py      what it must not leave behind
report.py      faults.json and docs/faults.md
"""
