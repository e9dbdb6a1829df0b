"""Training on several devices and processes: the rows of each, and what the processes do together."""
