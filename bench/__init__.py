"""Benchmarks of this project's parts against others, run on one machine. Not part of the package."""
