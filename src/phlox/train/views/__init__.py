"""What one sees of a training: on a terminal, in a notebook, in a report, in plots."""
