"""Benchmarks. Every figure is a ratio of two things measured side by side in one run on one machine."""
