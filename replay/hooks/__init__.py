"""Checks for pre-commit that read source and run nothing."""
