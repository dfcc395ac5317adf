"""Measurements for docs/scaling.md: steps on two nodes, their parts, and the scheduling of many trials."""
