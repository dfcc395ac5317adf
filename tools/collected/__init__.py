"""Networks of third-party collections, for ``python -m tools.collections_table``."""
