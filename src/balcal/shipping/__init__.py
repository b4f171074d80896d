"""Ship what was trained: one file that takes raw pixels and says calibrated probabilities, with a card of its claims."""
