"""What every room uses: files, checkpoints, randomness, devices, progress, and checks of values and names."""
