"""Searches the neighbourhood of dumps for failures that they do not show, with Hypothesis as the engine of search."""
