"""Looking into trained networks: what their features, classifiers and maps are like, also epoch by epoch."""
