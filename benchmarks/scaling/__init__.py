"""What docs/scaling.md says, measured: steps on two nodes, their parts, and the scheduling of many trials."""
