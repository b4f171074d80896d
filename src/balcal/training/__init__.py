"""Training: the loop, what it keeps between steps, and the ways into it (`fit`, `train_recipe`, `retrofit`)."""
