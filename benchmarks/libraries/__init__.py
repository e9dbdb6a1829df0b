"""How each library trains a model and predicts with it: one file for each library, for all models."""
