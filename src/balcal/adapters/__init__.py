"""Use it where you already work: thin adapters over `model.loss` and `model.end_epoch`, each imported when asked."""
