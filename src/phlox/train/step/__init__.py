"""One step of a training: the loss and its weight, the functions that compile, and the measurements."""
