"""The optimizers, one file each: how one parameter is updated."""
