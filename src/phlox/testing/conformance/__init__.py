"""The conformance suite: a table with a row for every operation of the contract, and the code that runs rows."""
