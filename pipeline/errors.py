"""Errors that the user can fix."""


class StudyError(Exception):
    """The message names the key or file, what was expected and what to do; stages print it without a traceback."""


class Diverged(StudyError):
    """The loss stopped being a number. The hyperparameters cause this, so a second attempt would diverge too."""


class OutOfMemory(StudyError):
    """A worker needs more memory than its GPU or its node has, so a second attempt would need it too."""


def words_of(report: BaseException) -> str:
    """The message of a StudyError that another process raised and Ray wrapped in its report; else the whole report."""
    _, found, words = str(report).rpartition(f"{__name__}.{StudyError.__name__}: ")
    return words.strip() if found else str(report)
