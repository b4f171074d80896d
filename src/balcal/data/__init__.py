"""Images: where they come from, how they are split, how batches are made of them."""
