"""Training by several devices and processes: whose rows are whose, and what the processes do together."""
