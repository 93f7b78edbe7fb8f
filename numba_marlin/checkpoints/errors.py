"""The error of a bad checkpoint; its message names the file, the tensor and the rule."""


class CheckpointError(ValueError):
    """A file or directory is not a valid checkpoint. Nothing was written."""
