"""The states of optimizers: as trees, as flat lists for compiled functions, in records, in reports."""
