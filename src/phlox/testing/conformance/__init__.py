"""The conformance suite: every operation of the contract as a row of a table, and how rows are carried out."""
