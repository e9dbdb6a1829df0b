"""Learning-rate schedules: objects that return the next rate, and whose state is a record."""
