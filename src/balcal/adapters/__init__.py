"""Adapters for scikit-learn, Lightning and Hugging Face, each imported when it is used."""
