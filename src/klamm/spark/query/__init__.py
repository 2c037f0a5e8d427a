"""A running streaming query: its triggers, checkpoints, progress and lag."""
