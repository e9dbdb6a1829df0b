"""Views of a training: in a terminal, in a notebook, in a report, and as plots."""
