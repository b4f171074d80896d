"""Evaluation of trained runs: predictions and figures of the test split, and beyond it (shift, OOD, human labels)."""
