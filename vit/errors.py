"""Errors caused by user input. Their messages are shown as they are; every other exception is a bug."""

MOST = 250  # [characters] of a message about files


class UserError(Exception):
    """The user's input cannot be used. The message says what is wrong, why, and what to do.

    It does not derive from `ValueError`: a ValueError raised by a library or by our own code is a bug.
    """


class _InvalidFiles(UserError):
    """Files of somebody cannot be used. Names in the message may have any length, so its middle may be left out.

    Args:
        whole: leave nothing out, in a message without names from the files.
    """

    def __init__(self, message: str, whole: bool = False):
        short = whole or len(message) <= MOST
        super().__init__(message if short else f"{message[: MOST // 2]}…{message[1 - MOST // 2 :]}")


class InvalidImage(UserError):
    """The data is not a picture that can be decoded safely."""


class InvalidCheckpoint(_InvalidFiles):
    """The file or folder is not a Vision Transformer that can be loaded exactly."""


class UnknownHeads(InvalidCheckpoint):
    """The number of attention heads of a checkpoint is not recorded.

    Attributes:
        choices: head counts that divide its width.
    """

    def __init__(self, message: str, choices: tuple[int, ...]):
        super().__init__(message)
        self.choices = choices


class Unavailable(InvalidCheckpoint):
    """A remote checkpoint cannot be downloaded: unknown name, no connection, no permission, or no disk space."""


class InvalidDataset(_InvalidFiles):
    """The folder or archive is not a labelled image dataset that can be used for training."""


class InvalidConfig(UserError):
    """A setting has an invalid value, by itself or in combination with others."""


class InvalidRun(UserError):
    """The run does not exist, or its state does not allow the operation."""
