"""The regression study: a small network for every fold and run of a table, trained many at a time."""
