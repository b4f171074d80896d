"""Analysis of trained networks: features, classifiers and activation maps, also epoch by epoch."""
