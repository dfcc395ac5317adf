"""What goes wrong for a reason that the user can mend."""


class StudyError(Exception):
    """Its message names the key or file, what was expected and what to do; stages print it without a traceback."""
