"""Training: the loop, its state, and the functions that start it (`fit`, `train_recipe`, `retrofit`)."""
