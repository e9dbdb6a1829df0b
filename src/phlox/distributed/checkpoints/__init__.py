"""Records in shards: each process writes and reads its own parts."""
