"""The check of numbers, under the name by which the rooms above ``moments`` import it."""

from mnvi.moments.checking import check_number

__all__ = ["check_number"]
