"""What goes wrong for a reason that the user can mend."""


class StudyError(Exception):
    """Its message names the key or file, what was expected and what to do; stages print it without a traceback."""


class Diverged(StudyError):
    """The loss stopped being a number: a fact about the hyperparameters, which no second attempt changes."""


def words_of(report: BaseException) -> str:
    """What a StudyError said that another process raised and Ray put into a report; else the whole report."""
    _, found, words = str(report).rpartition(f"{__name__}.{StudyError.__name__}: ")
    return words.strip() if found else str(report)
