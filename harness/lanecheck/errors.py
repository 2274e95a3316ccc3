"""What can go wrong that the user can mend: one line that says what is wrong and what to do."""


class LanecheckError(Exception):
    """Base of every error that the command line prints as one line instead of a traceback."""

    exit_code = 1


class BadInput(LanecheckError):
    """The user gave something that cannot be right: a file, a name, an option."""

    exit_code = 2


class CannotRun(LanecheckError):
    """Nothing is known to be wrong, but this machine cannot do what was asked."""

    exit_code = 3
