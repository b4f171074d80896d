"""Figures from predictions."""
