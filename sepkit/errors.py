"""The one exception that means "the user can mend this"; the command line turns it into one line and exit code 2."""


class UserError(Exception):
    """Bad input, said in one line: the file or field, what was found, what was expected, what to do.

    Everything else that reaches the command line is a failure of ours (exit code 1).
    """
