"""What the program itself needs: files, checkpoints, randomness, devices, progress; checked values and names."""
