"""The exception for mistakes that the user can mend; the command line prints one line and exits with code 2."""


class UserError(Exception):
    """Bad input, said in one line: the file or field, what was found, what was expected, what to do.

    Everything else that reaches the command line is a failure of ours (exit code 1).
    """
