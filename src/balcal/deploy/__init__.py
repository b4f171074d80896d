"""Ship what was trained: a file that takes raw pixels and says calibrated probabilities, and a card of its claims."""
