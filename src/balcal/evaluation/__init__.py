"""A trained run beyond its test split: corrupted images, images from elsewhere, what people saw."""
