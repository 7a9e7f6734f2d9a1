"""What a run leaves on disk to be taken up from: checkpoints, whole or in slices, and folders of weights."""
