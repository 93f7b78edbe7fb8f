"""What is wrong with a checkpoint, in words that name the file, the tensor and the rule."""


class CheckpointError(ValueError):
    """A file or directory is not what a checkpoint must be. Nothing was written."""
