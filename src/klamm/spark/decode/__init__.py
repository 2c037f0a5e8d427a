"""Record batches and values as Arrow columns."""
