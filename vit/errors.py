"""What a user can cause, each with one clear sentence to show; everything else is a bug."""


class UserError(Exception):
    """The user's input cannot be used: the message says what is wrong, why, and what to do.

    No `ValueError`: one that comes out of a library, or of our own arithmetic, is a bug.
    """


class InvalidImage(UserError):
    """The bytes are not a picture that can be opened safely."""


class InvalidCheckpoint(UserError):
    """The file or folder is not a Vision Transformer that can be loaded faithfully."""


class UnknownHeads(InvalidCheckpoint):
    """Nothing says how many attention heads a checkpoint has.

    Attributes:
        choices: numbers that would fit its width.
    """

    def __init__(self, message: str, choices: tuple[int, ...]):
        super().__init__(message)
        self.choices = choices


class Unavailable(InvalidCheckpoint):
    """A checkpoint from elsewhere cannot be had: no such name, no way to it, no right to it, or no room for it."""


class InvalidDataset(UserError):
    """The folder or archive is not a labelled set of pictures that can be trained on."""


class InvalidConfig(UserError):
    """A setting has a value that cannot work, alone or together with the others."""


class InvalidRun(UserError):
    """There is no such run, or it is not in a state in which this can be done."""
