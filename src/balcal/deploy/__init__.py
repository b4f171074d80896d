"""Deploy a run: export it to one file, from raw pixels to calibrated probabilities; load it; monitor it in use."""
