"""What several methods are built of; a method itself is one file of the folder above."""
