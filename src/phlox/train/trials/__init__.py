"""What a learner does on trial, and takes back: the range of learning rates, a dry run."""
