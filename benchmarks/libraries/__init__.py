"""How each library trains a model and predicts with it: one file a library, for all models."""
